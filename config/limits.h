/* Every hard cap of the server in one place.  Each is tested at the limit, one under and one over.
 */
#ifndef CONFIG_LIMITS_H
#define CONFIG_LIMITS_H

enum {
    /* ---- requests ---- */
    LIMIT_BODY_BYTES =
        4 * 1024 * 1024, /* default; config server.max_body_bytes lowers or raises it */
    LIMIT_BODY_BYTES_MAX = 64 * 1024 * 1024,
    LIMIT_PATH_BYTES = 8 * 1024,  /* of a request's target, percent-decoded, without its query */
    LIMIT_HEAD_BYTES = 64 * 1024, /* of a request: its first line and all headers */
    LIMIT_JSON_DEPTH = 64,
    LIMIT_CANDIDATES = 10000, /* candidates of one race */
    LIMIT_PROMPTS = 256,      /* prompts in one completions request */
    LIMIT_STOPS = 16,         /* stop strings of one request */
    LIMIT_STOP_BYTES = 256,   /* of one stop string */
    LIMIT_TOP_LOGPROBS = 20,
    LIMIT_TEMPERATURES = 16, /* of one race's diversity */
    LIMIT_PROMPT_VARIANTS = 16,
    LIMIT_VARIANT_BYTES = 64 * 1024, /* of each of their texts */
    LIMIT_PASS_AT = 32,              /* values of k in one request's pass_at_k */
    LIMIT_MESSAGES = 4096,
    LIMIT_RESPONSES_ECHO = 128 * 1024 * 1024, /* what /v1/responses repeats of its request */
    LIMIT_CONNECTIONS = 4096,                 /* open at once */
    LIMIT_RACES = 1024,                       /* accepted at once; more get 429 */
    LIMIT_REQUEST_SECONDS = 86400,

    /* ---- verifier ---- */
    LIMIT_TESTS_BYTES = 1024 * 1024,
    LIMIT_TESTS_DATA_BYTES = 32 * 1024 * 1024, /* of formats whose tests are JSON */
    LIMIT_TESTS_CASES = 10000,
    LIMIT_CODE_BYTES = 1024 * 1024,   /* source of one candidate */
    LIMIT_OUTPUT_BYTES = 1024 * 1024, /* a candidate that writes more ends with output_limit */
    LIMIT_OUTPUT_KEPT = 64 * 1024,    /* head and tail kept of what it wrote */
    LIMIT_CODEC_BYTES =
        64 * 1024 * 1024, /* one value between the candidate's and the tests' process */
    LIMIT_CODEC_DEPTH = 100,
    LIMIT_VERIFY_SECONDS = 600,
    LIMIT_VERIFY_MEMORY_MB = 16384,
    LIMIT_VERIFY_WORKERS = 256,
    LIMIT_TEMPLATE_BYTES = 1024 * 1024,

    /* ---- models ---- */
    LIMIT_CONTEXT = 131072, /* positions of one sequence */
    LIMIT_ROWS = 8192,      /* rows of one step */
    LIMIT_VOCAB = 1 << 20,
    LIMIT_LAYERS = 512,
    LIMIT_WIDTH = 1 << 17, /* embedding or feed-forward length */
    LIMIT_HEADS = 1024,
    LIMIT_THREADS = 256,
};

#endif
