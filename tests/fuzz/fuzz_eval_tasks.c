/* Files of tasks from anywhere: the reader takes any bytes, gzip or not, and what it accepts is
 * whole: each task has an id of its own, a question and tests. */
#include "base/err.h"
#include "server/eval_tasks.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INFLATED_BYTES = 1 << 20 };

static void check(const struct eval_tasks *ts) {
    BUG_ON(ts->n < 1 || ts->n > EVAL_TASKS_MAX);
    for (int i = 0; i < ts->n; i++) {
        const struct eval_task *t = &ts->tasks[i];
        BUG_ON(!t->id || strlen(t->id) > EVAL_TASK_ID_BYTES);
        BUG_ON(!t->question || !*t->question);
        BUG_ON(!t->tests || !t->tests_len || t->tests[t->tests_len]);
        BUG_ON(t->code && !t->entry_point);
        BUG_ON(t->human_eval && (!t->format || strcmp(t->format, "humaneval")));
        for (int j = 0; j < i && i < 100; j++)
            BUG_ON(!strcmp(ts->tasks[j].id, t->id));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct eval_tasks tasks;
    struct err e = {0};
    const char *text = (const char *)data;
    char *inflated = NULL;
    size_t len = size;
    if (size >= 2 && data[0] == 0x1f && data[1] == 0x8b) {
        inflated = eval_tasks_inflate(text, size, INFLATED_BYTES, &len, &e);
        if (!inflated) {
            BUG_ON(e.kind != ERR_INPUT || !e.message[0]);
            return 0;
        }
        text = inflated;
    }
    if (eval_tasks_parse(&tasks, "tasks", text, len, &e)) {
        check(&tasks);
        eval_tasks_clear(&tasks);
    } else {
        BUG_ON(e.kind != ERR_INPUT || !e.message[0]);
    }
    free(inflated);
    return 0;
}
