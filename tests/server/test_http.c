/* HTTP over real sockets: the server's loop runs in a thread of its own, the clients here are
 * blocking sockets, so that each test says byte for byte what goes over the wire and when. */
#include "server/http.h"

#include "config/limits.h"

#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_BODY = 100000, STREAM_PIECES = 5, WAITING = 1000 };

/* ---- the server ---- */

static struct {
    uv_loop_t loop;
    struct http_server *http;
    uv_async_t stop;
    pthread_t thread;
    atomic_int n_waiting, gone, handled, busy;
    int port;
    bool stopping;
} server;

/* A request that waits until its client leaves, or, as a stream, is written to piece by piece. */
struct wait {
    struct http_request *http;
    uv_timer_t timer;
    int pieces;
};

static void reply_text(struct http_request *r, int status, const char *text) {
    http_reply(r, status, "text/plain", strdup(text), strlen(text));
}

static void free_wait(uv_handle_t *h) { free(h->data); }

static void on_gone(void *arg) {
    struct wait *w = arg;
    atomic_fetch_add(&server.gone, 1);
    atomic_fetch_sub(&server.n_waiting, 1);
    uv_close((uv_handle_t *)&w->timer, free_wait);
}

static void on_piece(uv_timer_t *timer) {
    struct wait *w = timer->data;
    char text[32];
    snprintf(text, sizeof text, "piece %d\n", w->pieces);
    http_write(w->http, text, strlen(text));
    if (++w->pieces < STREAM_PIECES) return;
    http_end(w->http);
    atomic_fetch_sub(&server.n_waiting, 1);
    uv_close((uv_handle_t *)timer, free_wait);
}

static void on_flood(uv_timer_t *timer) {
    static const char block[1024 * 1024];
    http_write(((struct wait *)timer->data)->http, block, sizeof block);
}

static void on_later(uv_timer_t *timer) {
    struct wait *w = timer->data;
    reply_text(w->http, 200, "later");
    atomic_fetch_sub(&server.n_waiting, 1);
    uv_close((uv_handle_t *)timer, free_wait);
}

static struct wait *wait_new(struct http_request *r) {
    struct wait *w = calloc(1, sizeof *w);
    w->http = r;
    uv_timer_init(&server.loop, &w->timer);
    w->timer.data = w;
    http_on_gone(r, on_gone, w);
    atomic_fetch_add(&server.n_waiting, 1);
    return w;
}

static void echo(struct http_request *r) {
    size_t len;
    const char *body = http_body(r, &len);
    unsigned sum = 0;
    for (size_t i = 0; i < len; i++)
        sum = sum * 31 + (unsigned char)body[i];
    char text[200];
    snprintf(text, sizeof text, "method %d body %zu sum %u", (int)http_method(r), len, sum);
    http_add_header(r, "x-extra", "one");
    reply_text(r, 200, text);
}

static void handle(void *arg, struct http_request *r) {
    (void)arg;
    const char *path = http_path(r);
    atomic_fetch_add(&server.handled, 1);
    if (!strcmp(path, "/wait")) {
        wait_new(r);
    } else if (!strcmp(path, "/later")) {
        uv_timer_start(&wait_new(r)->timer, on_later, 30, 0);
    } else if (!strcmp(path, "/stream")) {
        struct wait *w = wait_new(r);
        http_stream(r, 200, "text/event-stream");
        uv_timer_start(&w->timer, on_piece, 10, 10);
    } else if (!strcmp(path, "/stream-wait")) {
        wait_new(r);
        http_stream(r, 200, "text/event-stream");
        http_write(r, "first\n", 6);
    } else if (!strcmp(path, "/flood")) {
        struct wait *w = wait_new(r);
        http_stream(r, 200, "text/event-stream");
        uv_timer_start(&w->timer, on_flood, 1, 1);
    } else if (!strcmp(path, "/connections")) {
        char text[32];
        struct http_stats stats;
        http_stats(server.http, &stats);
        snprintf(text, sizeof text, "%d connections", stats.connections);
        reply_text(r, 200, text);
    } else {
        echo(r);
    }
}

static void refuse(void *arg, struct http_request *r, const struct err *e) {
    (void)arg;
    static const int statuses[] = {
        [ERR_INPUT] = 400, [ERR_TOO_LARGE] = 413, [ERR_URI] = 414,
        [ERR_MEDIA] = 415, [ERR_HEAD] = 431,      [ERR_UNAVAILABLE] = 503};
    reply_text(r, statuses[e->kind], e->message);
}

static void on_stop(uv_async_t *async) {
    http_close(server.http);
    uv_close((uv_handle_t *)async, NULL);
}

static void *run(void *arg) {
    (void)arg;
    uv_run(&server.loop, UV_RUN_DEFAULT);
    return NULL;
}

static void close_timer(uv_handle_t *handle, void *arg) {
    (void)arg;
    if (!uv_is_closing(handle)) uv_close(handle, handle->type == UV_TIMER ? free_wait : NULL);
}

static void setup_with(double idle_s, double read_s) {
    struct err e = {0};
    memset(&server, 0, sizeof server);
    ck_assert_int_eq(uv_loop_init(&server.loop), 0);
    const struct http_options options = {.host = "127.0.0.1",
                                         .max_connections = 1500,
                                         .idle_s = idle_s,
                                         .read_s = read_s,
                                         .max_body = MAX_BODY};
    const struct http_handler handler = {handle, refuse, NULL};
    server.http = http_open(&server.loop, &options, &handler, &e);
    ck_assert_msg(server.http != NULL, "%s", e.message);
    server.port = http_port(server.http);
    uv_async_init(&server.loop, &server.stop, on_stop);
    pthread_create(&server.thread, NULL, run, NULL);
}

static void setup(void) { setup_with(30, 0); }

static void stop(void) {
    if (!server.stopping) uv_async_send(&server.stop);
    server.stopping = true;
}

/* Also shows that closing leaves nothing behind (LeakSanitizer looks). */
static void teardown(void) {
    stop();
    pthread_join(server.thread, NULL);
    uv_walk(&server.loop, close_timer, NULL);
    uv_run(&server.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&server.loop), 0);
}

/* ---- the client ---- */

static int dial(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)server.port),
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval limit = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void send_bytes(int fd, const char *data, size_t len) {
    while (len) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) return; /* refused early: the answer tells */
        data += n;
        len -= (size_t)n;
    }
}

static void send_text(int fd, const char *text) { send_bytes(fd, text, strlen(text)); }

/* Reads until `until` has come (or the end, where NULL); the text so far, static. */
static const char *receive(int fd, const char *until) {
    static char text[1 << 20];
    size_t len = 0;
    text[0] = 0;
    while (len + 1 < sizeof text && !(until && strstr(text, until))) {
        ssize_t n = recv(fd, text + len, sizeof text - 1 - len, 0);
        if (n <= 0) break;
        len += (size_t)n;
        text[len] = 0;
    }
    return text;
}

static void expect(const char *text, const char *part) {
    ck_assert_msg(strstr(text, part) != NULL, "no \"%s\" in:\n%s", part, text);
}

static void expect_not(const char *text, const char *part) {
    ck_assert_msg(strstr(text, part) == NULL, "\"%s\" in:\n%s", part, text);
}

static void eventually(const atomic_int *what, int value) {
    for (int i = 0; i < 10000 && atomic_load(what) != value; i++)
        usleep(1000);
    ck_assert_int_eq(atomic_load(what), value);
}

static unsigned checksum(size_t len, char c) {
    unsigned sum = 0;
    for (size_t i = 0; i < len; i++)
        sum = sum * 31 + (unsigned char)c;
    return sum;
}

static void post(int fd, size_t len, const char *headers) {
    char head[400];
    snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n%s\r\n",
             len, headers);
    char *body = malloc(len ? len : 1);
    memset(body, 'x', len);
    send_text(fd, head);
    send_bytes(fd, body, len);
    free(body);
}

static void expect_body(const char *text, size_t len) {
    char want[80];
    snprintf(want, sizeof want, "body %zu sum %u", len, checksum(len, 'x'));
    expect(text, want);
}

/* ---- requests and answers ---- */

START_TEST(keep_alive_and_pipelining) {
    int fd = dial();
    send_text(fd, "GET /a HTTP/1.1\r\nHost: h\r\nX-Request-ID: abc-1.2\r\n\r\n");
    const char *text = receive(fd, "sum 0");
    expect(text, "HTTP/1.1 200");
    expect(text, "x-request-id: abc-1.2\r\n");
    expect(text, "x-extra: one\r\n");
    send_text(fd, "GET /b HTTP/1.1\r\nHost: h\r\nX-Request-ID: p1\r\n\r\n"
                  "GET /c HTTP/1.1\r\nHost: h\r\nX-Request-ID: p2\r\nConnection: close\r\n\r\n");
    text = receive(fd, NULL);
    expect(text, "x-request-id: p1");
    expect(text, "x-request-id: p2");
    ck_assert(strstr(text, "p1") < strstr(text, "p2"));
    close(fd);
}
END_TEST

START_TEST(request_ids_are_made_where_none_or_none_plain) {
    int fd = dial();
    send_text(fd, "GET /a HTTP/1.1\r\nHost: h\r\nX-Request-ID: no spaces\r\n\r\n");
    const char *text = receive(fd, "sum 0");
    expect(text, "x-request-id: req_");
    expect_not(text, "no spaces");
    close(fd);
}
END_TEST

START_TEST(head_has_no_body) {
    int fd = dial();
    send_text(fd, "HEAD /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    const char *text = receive(fd, NULL);
    expect(text, "HTTP/1.1 200");
    expect(text, "Content-Length: ");
    expect_not(text, "method");
    close(fd);
}
END_TEST

START_TEST(http_1_0_closes) {
    int fd = dial();
    send_text(fd, "GET /later HTTP/1.0\r\n\r\n");
    expect(receive(fd, NULL), "later");
    close(fd);
}
END_TEST

START_TEST(a_later_answer_reaches_its_client) {
    int fd = dial();
    for (int i = 0; i < 3; i++) {
        send_text(fd, "POST /later HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi");
        expect(receive(fd, "later"), "HTTP/1.1 200");
    }
    close(fd);
    eventually(&server.n_waiting, 0);
    ck_assert_int_eq(atomic_load(&server.gone), 0);
}
END_TEST

/* ---- bodies ---- */

START_TEST(a_body_of_the_limit_is_taken_and_one_byte_more_is_not) {
    int fd = dial();
    post(fd, MAX_BODY, "");
    expect_body(receive(fd, "sum"), MAX_BODY);
    post(fd, MAX_BODY + 1, "");
    const char *text = receive(fd, "server.max_body_bytes");
    expect(text, "HTTP/1.1 413");
    /* It was read to its end, so that the connection is good for more. */
    post(fd, 10, "");
    expect_body(receive(fd, "sum"), 10);
    ck_assert_int_eq(atomic_load(&server.handled), 2);
    close(fd);
}
END_TEST

static void post_chunked(int fd, size_t len) {
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    while (len) {
        char chunk[1100];
        size_t n = len < 1000 ? len : 1000;
        int head = snprintf(chunk, sizeof chunk, "%zx\r\n", n);
        memset(chunk + head, 'x', n);
        chunk[(size_t)head + n] = '\r';
        chunk[(size_t)head + n + 1] = '\n';
        send_bytes(fd, chunk, (size_t)head + n + 2);
        len -= n;
    }
    send_text(fd, "0\r\n\r\n");
}

START_TEST(chunked_bodies_have_the_same_limit) {
    int fd = dial();
    post_chunked(fd, 12345);
    expect_body(receive(fd, "sum"), 12345);
    post_chunked(fd, MAX_BODY);
    expect_body(receive(fd, "sum"), MAX_BODY);
    post_chunked(fd, MAX_BODY + 1);
    expect(receive(fd, "server.max_body_bytes"), "HTTP/1.1 413");
    close(fd);
}
END_TEST

START_TEST(too_large_is_refused_before_100_continue) {
    int fd = dial();
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\n"
                  "Expect: 100-continue\r\n\r\n");
    const char *text = receive(fd, "server.max_body_bytes");
    expect(text, "HTTP/1.1 413");
    expect_not(text, "100 Continue");
    close(fd);

    fd = dial();
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n"
                  "Expect: 100-continue\r\n\r\n");
    expect(receive(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue");
    send_text(fd, "xxxxx");
    expect_body(receive(fd, "sum"), 5);
    close(fd);
}
END_TEST

START_TEST(absurd_lengths_are_refused_at_once) {
    int fd = dial();
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000000000000000\r\n\r\n");
    expect(receive(fd, "server.max_body_bytes"), "HTTP/1.1 413");
    close(fd);
}
END_TEST

START_TEST(encoded_bodies_are_415) {
    int fd = dial();
    post(fd, 10, "Content-Encoding: gzip\r\n");
    expect(receive(fd, "gzip"), "HTTP/1.1 415");
    post(fd, 10, "Content-Encoding: identity\r\n");
    expect_body(receive(fd, "sum"), 10);
    close(fd);
}
END_TEST

START_TEST(garbage_harms_nobody) {
    static const char *const garbage[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nnope",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "GET /%00%ff%zz HTTP/1.1\r\nHost: h\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        int fd = dial();
        send_text(fd, garbage[i]);
        close(fd);
    }
    int fd = dial();
    post(fd, 3, "");
    expect_body(receive(fd, "sum"), 3);
    close(fd);
}
END_TEST

/* A request whose path or head has so many bytes. */
static void expect_head(size_t path, size_t head, const char *status) {
    static char text[LIMIT_HEAD_BYTES + 2];
    static const char before[] = "GET ",
                      between[] = " HTTP/1.1\r\nHost: h\r\nX-Long: ", after[] = "\r\n\r\n";
    size_t at = sizeof before - 1;
    memcpy(text, before, at);
    text[at] = '/';
    memset(text + at + 1, 'p', path - 1);
    at += path;
    memcpy(text + at, between, sizeof between - 1);
    at += sizeof between - 1;
    size_t end = head - (sizeof after - 1);
    memset(text + at, 'x', end - at);
    memcpy(text + end, after, sizeof after - 1);
    int fd = dial();
    send_bytes(fd, text, head);
    expect(receive(fd, "\r\n\r\n"), status);
    close(fd);
}

START_TEST(heads_of_the_limit_are_taken_and_one_byte_more_is_not) {
    expect_head(LIMIT_PATH_BYTES, 10000, "HTTP/1.1 200");
    expect_head(LIMIT_PATH_BYTES + 1, 10000, "HTTP/1.1 414");
    expect_head(10, LIMIT_HEAD_BYTES, "HTTP/1.1 200");
    expect_head(10, LIMIT_HEAD_BYTES + 1, "HTTP/1.1 431");
}
END_TEST

START_TEST(bodies_framed_in_two_ways_are_refused) {
    static const char *const framings[] = {
        "Content-Length: 1\r\nContent-Length: 2\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
    };
    for (size_t i = 0; i < sizeof framings / sizeof *framings; i++) {
        char head[200];
        snprintf(head, sizeof head, "POST /a HTTP/1.1\r\nHost: h\r\n%s\r\n0\r\n\r\n", framings[i]);
        int fd = dial();
        send_text(fd, head);
        const char *text = receive(fd, NULL); /* to the end: it is closed */
        expect(text, "HTTP/1.1 400");
        expect_not(text, "HTTP/1.1 200");
        close(fd);
    }
    ck_assert_int_eq(atomic_load(&server.handled), 0);
}
END_TEST

START_TEST(huge_heads_are_refused) {
    int fd = dial();
    send_text(fd, "GET / HTTP/1.1\r\nHost: h\r\nX-Long: ");
    static char filler[4 * LIMIT_HEAD_BYTES];
    memset(filler, 'a', sizeof filler);
    send_bytes(fd, filler, sizeof filler);
    send_text(fd, "\r\n\r\n");
    const char *text = receive(fd, NULL);
    ck_assert(!*text || strstr(text, "HTTP/1.1 4"));
    close(fd);
}
END_TEST

/* ---- clients that leave ---- */

static void leave(const char *path, const char *until, bool half) {
    int fd = dial();
    char text[100];
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path);
    send_text(fd, text);
    if (until) expect(receive(fd, until), until);
    eventually(&server.n_waiting, 1);
    if (half)
        shutdown(fd, SHUT_WR);
    else
        close(fd);
    eventually(&server.gone, 1);
    eventually(&server.n_waiting, 0);
    if (half) {
        receive(fd, NULL);
        close(fd);
    }
}

START_TEST(leaving_while_waiting_is_noticed) { leave("/wait", NULL, false); }
END_TEST
START_TEST(half_closing_while_waiting_counts_as_leaving) { leave("/wait", NULL, true); }
END_TEST
START_TEST(leaving_a_silent_stream_is_noticed) { leave("/stream-wait", "first", false); }
END_TEST

START_TEST(leaving_with_more_bytes_unread_is_noticed) {
    int fd = dial();
    send_text(fd, "GET /wait HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n");
    eventually(&server.n_waiting, 1);
    close(fd);
    eventually(&server.gone, 1);
}
END_TEST

START_TEST(leaving_in_mid_body_frees_the_request) {
    int fd = dial();
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nabc");
    close(fd);
    fd = dial();
    post(fd, 3, "");
    expect_body(receive(fd, "sum"), 3);
    close(fd);
    ck_assert_int_eq(atomic_load(&server.gone), 0);
}
END_TEST

/* What is sent and the end come together: many times, since it is chance whether the server reads
 * between. */
START_TEST(leaving_right_after_a_word_frees_the_connection) {
    static const char *const words[] = {
        "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nabc",
        "POST /x HTTP/1.1\r\nContent-Le", "GET /x HTTP/1.1\r\nHost: h\r\n\r\n", "\x16\x03\x01\x02"};
    enum { CLIENTS = 40 };
    int open[CLIENTS];
    for (int i = 0; i < 2 * CLIENTS; i++) {
        int fd = dial();
        send_text(fd, words[i % 4]);
        if (i >= CLIENTS)
            close(fd);
        else
            shutdown(open[i] = fd, SHUT_WR);
    }
    const char *text = "";
    for (int turn = 0; turn < 600 && !strstr(text, "\r\n\r\n1 connections"); turn++) {
        usleep(10000); /* unseen they would idle for half a minute */
        int fd = dial();
        send_text(fd, "GET /connections HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        text = receive(fd, NULL);
        close(fd);
    }
    expect(text, "\r\n\r\n1 connections");
    for (int i = 0; i < CLIENTS; i++)
        close(open[i]);
}
END_TEST

START_TEST(a_client_that_reads_nothing_is_cut) {
    int fd = dial();
    send_text(fd, "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
    eventually(&server.gone, 1);
    close(fd);
}
END_TEST

/* ---- streams ---- */

START_TEST(streams_come_piece_by_piece) {
    int fd = dial();
    send_text(fd, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
    const char *text = receive(fd, "piece 0");
    expect(text, "Transfer-Encoding: chunked");
    expect_not(text, "piece 4");
    text = receive(fd, "0\r\n\r\n");
    expect(text, "piece 4");
    send_text(fd, "GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    expect(receive(fd, "sum 0"), "HTTP/1.1 200");
    close(fd);
}
END_TEST

/* ---- many ---- */

START_TEST(a_thousand_requests_wait_at_once) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    static int fds[WAITING];
    for (int i = 0; i < WAITING; i++) {
        fds[i] = dial();
        send_text(fds[i], "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    eventually(&server.n_waiting, WAITING);
    int fd = dial();
    post(fd, 3, "");
    expect_body(receive(fd, "sum"), 3);
    close(fd);
    for (int i = 0; i < WAITING; i++)
        close(fds[i]);
    eventually(&server.gone, WAITING);
}
END_TEST

/* A byte now and then keeps libmicrohttpd's own limit away, in the head as in the body. */
START_TEST(a_request_that_trickles_is_cut) {
    setup_with(30, 1);
    static const char *const starts[] = {
        "GET /echo HTTP/1.1\r\nx: ",
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 50000\r\n\r\n"};
    int fd[2], waiting = dial();
    send_text(waiting, "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    for (int i = 0; i < 2; i++)
        send_text(fd[i] = dial(), starts[i]);
    bool cut[2] = {false, false};
    for (int turn = 0; turn < 600 && !(cut[0] && cut[1]); turn++) {
        usleep(20000);
        for (int i = 0; i < 2; i++) {
            char byte;
            if (send(fd[i], "x", 1, MSG_NOSIGNAL) < 0 || recv(fd[i], &byte, 1, MSG_DONTWAIT) == 0)
                cut[i] = true;
        }
    }
    ck_assert(cut[0] && cut[1]);
    /* Who waits for an answer has done his part. */
    ck_assert_int_eq(atomic_load(&server.n_waiting), 1);
    close(fd[0]);
    close(fd[1]);
    close(waiting);
    teardown();
}
END_TEST

START_TEST(closing_with_requests_in_work_is_clean) {
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = dial();
        send_text(fds[i], i ? "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n"
                            : "GET /stream-wait HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    eventually(&server.n_waiting, 3);
    stop();
    for (int i = 0; i < 3; i++) {
        receive(fds[i], NULL);
        close(fds[i]);
    }
    ck_assert_int_eq(atomic_load(&server.gone), 0);
}
END_TEST

START_TEST(a_port_in_use_is_told) {
    uv_loop_t loop;
    struct err e = {0};
    uv_loop_init(&loop);
    const struct http_options options = {
        .host = "127.0.0.1", .port = server.port, .max_connections = 1, .idle_s = 1, .max_body = 1};
    const struct http_handler handler = {handle, refuse, NULL};
    ck_assert_ptr_null(http_open(&loop, &options, &handler, &e));
    expect(e.message, "is in use");
    const struct http_options nowhere = {
        .host = "no.such.host.invalid", .max_connections = 1, .idle_s = 1, .max_body = 1};
    ck_assert_ptr_null(http_open(&loop, &nowhere, &handler, &e));
    expect(e.message, "no.such.host.invalid");
    uv_loop_close(&loop);
}
END_TEST

START_TEST(silent_connections_are_closed) {
    setup_with(1, 0);
    int fd = dial();
    send_text(fd, "GET /a HTT");
    receive(fd,
            NULL); /* ends when the server closes; the receive's own limit would leave it open */
    char byte;
    ck_assert_int_eq(recv(fd, &byte, 1, MSG_DONTWAIT), 0);
    close(fd);
    teardown();
}
END_TEST

int main(void) {
    Suite *suite = suite_create("http");
    TCase *t = tcase_create("http");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 0);
    tcase_add_test(t, keep_alive_and_pipelining);
    tcase_add_test(t, request_ids_are_made_where_none_or_none_plain);
    tcase_add_test(t, head_has_no_body);
    tcase_add_test(t, http_1_0_closes);
    tcase_add_test(t, a_later_answer_reaches_its_client);
    tcase_add_test(t, a_body_of_the_limit_is_taken_and_one_byte_more_is_not);
    tcase_add_test(t, chunked_bodies_have_the_same_limit);
    tcase_add_test(t, too_large_is_refused_before_100_continue);
    tcase_add_test(t, absurd_lengths_are_refused_at_once);
    tcase_add_test(t, encoded_bodies_are_415);
    tcase_add_test(t, garbage_harms_nobody);
    tcase_add_test(t, heads_of_the_limit_are_taken_and_one_byte_more_is_not);
    tcase_add_test(t, bodies_framed_in_two_ways_are_refused);
    tcase_add_test(t, huge_heads_are_refused);
    tcase_add_test(t, leaving_while_waiting_is_noticed);
    tcase_add_test(t, half_closing_while_waiting_counts_as_leaving);
    tcase_add_test(t, leaving_a_silent_stream_is_noticed);
    tcase_add_test(t, leaving_with_more_bytes_unread_is_noticed);
    tcase_add_test(t, leaving_in_mid_body_frees_the_request);
    tcase_add_test(t, leaving_right_after_a_word_frees_the_connection);
    tcase_add_test(t, a_client_that_reads_nothing_is_cut);
    tcase_add_test(t, streams_come_piece_by_piece);
    tcase_add_test(t, a_thousand_requests_wait_at_once);
    tcase_add_test(t, closing_with_requests_in_work_is_clean);
    tcase_add_test(t, a_port_in_use_is_told);
    suite_add_tcase(suite, t);
    TCase *alone = tcase_create("own server");
    tcase_set_timeout(alone, 0);
    tcase_add_test(alone, silent_connections_are_closed);
    tcase_add_test(alone, a_request_that_trickles_is_cut);
    suite_add_tcase(suite, alone);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
