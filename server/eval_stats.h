/* What the results of many tasks say, and how sure one can be of it.  Pure; any thread. */
#ifndef SERVER_EVAL_STATS_H
#define SERVER_EVAL_STATS_H

/* One task: of `n` candidates judged `passed` passed. */
struct eval_count {
    int n, passed;
};

struct eval_estimate {
    double value, low, high; /* 95 % */
};

/* Mean over the tasks of the unbiased pass@k (api_response_pass_at).  The interval is a percentile
 * bootstrap over the tasks (Efron 1979), always with the same draws: it says how much the figure
 * depends on which tasks were asked.  Tasks with fewer than k candidates judged make it NAN. */
struct eval_estimate eval_stats_pass_at(const struct eval_count *, int n_tasks, int k);
/* The share of `solved` in `n`, with Wilson's score interval (1927). */
struct eval_estimate eval_stats_share(int solved, int n);

#endif
