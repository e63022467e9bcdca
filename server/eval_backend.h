/* Who runs the races of an evaluation: the engine in this process (eval_backend_local.c), or a
 * server that is asked over HTTP (eval_backend_remote.c).
 *
 * Both get the same request of the API and tell the same: each candidate judged, then the end.
 * Callbacks come from within turn() only.  One thread (LOOP in this process). */
#ifndef SERVER_EVAL_BACKEND_H
#define SERVER_EVAL_BACKEND_H

#include "base/err.h"
#include "config/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A candidate that got a verdict; all borrowed until the callback returns. */
struct eval_candidate {
    int index;  /* among all of its seed, not of its race */
    int prompt; /* its variant */
    float temperature;
    int tokens;
    const char *verdict; /* verdict_name() */
    bool passed, broken, duplicate;
    int tests_passed, tests_total;
    double verify_s;
    const char *error, *method; /* never NULL */
    const char *text, *code;    /* never NULL */
    size_t text_len, code_len;
};

struct eval_end {
    struct err error; /* ERR_NONE: it ran to its end; ERR_INPUT: this task can't be run; others: no
                         task can */
    int64_t tokens;   /* drawn for all its candidates, those cut off included */
    double seconds, first_pass_s; /* since its start; first_pass_s < 0: none passed */
};

struct eval_events {
    void (*candidate)(void *arg, void *cookie, const struct eval_candidate *);
    void (*end)(void *arg, void *cookie, const struct eval_end *);
    void *arg;
};

/* One race: the request, borrowed until start() returns. */
struct eval_ask {
    const char *body; /* the API's JSON, with firstpass.candidates "full" */
    size_t len;
    bool completion; /* of /v1/completions; else /v1/chat/completions */
};

struct eval_backend {
    void *self;            /* owned */
    const char *model;     /* its name; borrowed from self */
    const char *model_key; /* tells two models of one name apart, or ""; borrowed from self */
    int in_flight;         /* candidates that it likes to have at once, of all races together */
    int most_in_ask;       /* candidates of one race at most; 0: any number */
    bool (*start)(void *self, const struct eval_ask *, void *cookie, struct err *e);
    /* Candidates of one live race at once; NULL: the backend sees to it. */
    void (*set_width)(void *self, void *cookie, int width);
    /* Waits until something happened or half a second passed, and tells. */
    void (*turn)(void *self);
    void (*close)(void *self); /* drops what is live without callbacks */
};

/* Loads the model of the settings. */
bool eval_backend_local(struct eval_backend *, const struct config *, const struct eval_events *,
                        struct err *e) MUST_CHECK;
/* `url`: http(s)://HOST[:PORT][/v1].  `key`: sent as a bearer token, or NULL.  The model is
 * model.name of the settings where that is set, else the first that the server names. */
bool eval_backend_remote(struct eval_backend *, const struct config *, const char *url,
                         const char *key, const struct eval_events *, struct err *e) MUST_CHECK;

#endif
