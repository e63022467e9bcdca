/* The queue between threads; of most use under -fsanitize=thread. */
#include "base/queue.h"

#include <check.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

START_TEST(order_and_bounds) {
    struct queue *q = queue_new(3);
    int items[4];
    ck_assert_ptr_null(queue_pop(q));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 3; i++)
            ck_assert(queue_push(q, &items[i]));
        ck_assert(!queue_push(q, &items[3]));
        for (int i = 0; i < 3; i++)
            ck_assert_ptr_eq(queue_pop(q), &items[i]);
        ck_assert_ptr_null(queue_pop(q));
    }
    ck_assert(queue_push(q, &items[0]));
    ck_assert_ptr_eq(queue_pop_wait(q, 0), &items[0]);
    ck_assert_ptr_null(queue_pop_wait(q, 0));
    ck_assert_ptr_null(queue_pop_wait(q, 0.001));
    queue_free(q);
    queue_free(NULL);
}
END_TEST

enum { PUSHERS = 4, MESSAGES = 20000 };

struct message {
    int pusher, number;
};
struct pusher {
    struct queue *q;
    int id;
};

static void *push(void *arg) {
    struct pusher *p = arg;
    for (int i = 0; i < MESSAGES; i++) {
        struct message *m = err_alloc(1, sizeof *m);
        *m = (struct message){p->id, i};
        if (i % 2 || !queue_push(p->q, m)) queue_push_wait(p->q, m);
    }
    return NULL;
}

/* Every message arrives once, those of one pusher in order, however small the queue. */
START_TEST(many_push_one_pops) {
    static const size_t capacities[] = {1, 7, 1000};
    struct queue *q = queue_new(capacities[_i]);
    pthread_t threads[PUSHERS];
    struct pusher pushers[PUSHERS];
    for (int i = 0; i < PUSHERS; i++) {
        pushers[i] = (struct pusher){q, i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, push, &pushers[i]), 0);
    }
    int next[PUSHERS] = {0};
    for (int n = 0; n < PUSHERS * MESSAGES; n++) {
        struct message *m = n % 3 ? queue_pop_wait(q, -1) : queue_pop(q);
        if (!m) {
            n--;
            continue;
        }
        ck_assert_int_eq(m->number, next[m->pusher]++);
        free(m);
    }
    for (int i = 0; i < PUSHERS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_ptr_null(queue_pop(q));
    queue_free(q);
}
END_TEST

static void *kick(void *arg) {
    queue_kick(arg);
    return NULL;
}

START_TEST(kick_wakes_the_waiter_or_the_next) {
    struct queue *q = queue_new(2);
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, kick, q), 0);
        ck_assert_ptr_null(queue_pop_wait(q, -1)); /* would hang if a kick were lost */
        pthread_join(thread, NULL);
    }
    queue_kick(q);
    int item;
    ck_assert(queue_push(q, &item));
    ck_assert_ptr_eq(queue_pop_wait(q, -1), &item);
    queue_free(q);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("queue");
    TCase *t = tcase_create("queue");
    tcase_set_timeout(t, 0);
    tcase_add_test(t, order_and_bounds);
    tcase_add_loop_test(t, many_push_one_pops, 0, 3);
    tcase_add_test(t, kick_wakes_the_waiter_or_the_next);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
