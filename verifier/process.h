/* The supervisor's view of fork servers and of the processes that they make.
 *
 * THEORY.  A process is asked for, started (its pidfd arrives), and ends, in this order; a kill may
 * be wanted at any time, also before the pidfd is there: then it is pending and done at its
 * arrival.  (A flood of output once passed its cap before the pidfd had come; the kill hit nobody
 * and the job was stuck for ever.)  A pidfd for which this process has no descriptor left is lost:
 * then the fork server is asked to kill.  When a fork server's socket ends, all its processes are
 * lost: killed, and reported as ended with `lost`.  LOOP thread. */
#ifndef VERIFIER_PROCESS_H
#define VERIFIER_PROCESS_H

#include "base/err.h"
#include "base/list.h"
#include "verifier/watch.h"
#include "verifier/wire.h"

struct forker;

enum process_state { PROCESS_NONE, PROCESS_ASKED, PROCESS_STARTED, PROCESS_ENDED };

/* Embedded in what needs it, zeroed before process_start(); or process_new(). */
struct process {
    enum process_state state;
    uint32_t id;
    int job_fd;            /* owned until taken; the supervisor's end of the job socket */
    int pidfd;             /* owned; -1 until it came, and where there was no room for it */
    struct forker *forker; /* borrowed; until it has ended */
    bool kill_pending;
    bool killed; /* by us */
    bool lost;   /* its fork server went, or the fork failed: no status */
    int status;  /* as of waitpid */
    double cpu_s;
    int max_rss_mb;
    pid_t number;                          /* in our own /proc, once asked for; 0: not yet */
    int runs;                              /* how many jobs it was given */
    double cpu_before_s, starved_before_s; /* used when its present job began */
    void (*ended)(void *arg); /* once, never from within process_start() or process_kill() */
    void *arg;                /* borrowed */
    struct list link;         /* in its forker */
};

/* ---- fork servers ---- */

/* Owns control_fd.  `lost(arg)` comes once, after the ends of all its processes, when the socket
 * ends; `ready(arg, text)` at a WIRE_READY message, may be NULL. */
struct forker *process_forker_open(struct watch_set *, int control_fd,
                                   void (*ready)(void *arg, const char *text),
                                   void (*lost)(void *arg), void *arg);
/* Closes the socket, which ends the fork server; processes still there are killed and end as lost.
 * NULL is fine. */
void process_forker_close(struct forker *);

/* False from the moment on that its socket has ended, also while the ends of its processes are
 * being told. */
bool process_forker_is_open(const struct forker *);

/* ---- processes ---- */

/* Asks for a child.  False where the socket is full or gone; `p` is then PROCESS_NONE. */
bool process_start(struct forker *, struct process *p, enum wire_kind kind,
                   void (*ended)(void *arg), void *arg) MUST_CHECK;
/* Sends the job; the descriptors stay the caller's. */
bool process_give(struct process *p, const struct wire_job *job, const int *fds,
                  int n_fds) MUST_CHECK;
void process_kill(struct process *p);
/* Seconds it has computed up to now and seconds it was ready to but had no core; 0 where the system
 * doesn't tell. */
void process_time(struct process *p, double *cpu_s, double *starved_s);
/* Fills cpu_s and max_rss_mb with what it has used up to now, of one whose end is not waited for.
 */
void process_use(struct process *p);
/* Closes its descriptors; it must have ended or never begun. */
void process_clear(struct process *p);

/* On the heap, for a process that goes from hand to hand: forked ahead, or used again.  NULL where
 * process_start() would fail. */
struct process *process_new(struct forker *, enum wire_kind kind, void (*ended)(void *arg),
                            void *arg);
/* Tells another one of its end from now on; it must not have ended. */
void process_adopt(struct process *, void (*ended)(void *arg), void *arg);
/* Nobody's any more: killed, freed when it has ended.  NULL is fine. */
void process_abandon(struct process *);
/* process_clear() and free.  NULL is fine. */
void process_free(struct process *);

#endif
