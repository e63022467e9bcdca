#include "server/page.h"

#include "base/err.h"
#include "server/route.h"

#include <stdlib.h>
#include <string.h>

static void add_headers(struct http_request *http, const struct page_file *file) {
    static const char *const headers[][2] = {
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
         "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        /* Kept, and asked for each time whether it is still right: another build may be running. */
        {"Cache-Control", "no-cache"},
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        http_add_header(http, headers[i][0], headers[i][1]);
    http_add_header(http, "ETag", file->etag);
}

/* One of the tags in If-None-Match is the file's; a "W/" before it says nothing against it. */
static bool is_known(const struct http_request *http, const struct page_file *file) {
    const char *tags = http_header(http, "if-none-match");
    return tags && (!strcmp(tags, "*") || strstr(tags, file->etag));
}

void page_reply(struct http_request *http, const char *name) {
    const struct page_file *file = NULL;
    for (int i = 0; i < page_n_files && !file; i++)
        if (!strcmp(*name ? name : page_files[0].name, page_files[i].name)) file = &page_files[i];
    if (!file) {
        struct err e = {0};
        route_not_found(http_path(http), &e);
        route_reply_error(http, &e, NULL);
        return;
    }
    add_headers(http, file);
    if (is_known(http, file)) {
        http_reply(http, 304, NULL, NULL, 0);
        return;
    }
    char *body = err_alloc(file->len, 1);
    memcpy(body, file->data, file->len);
    http_reply(http, 200, file->type, body, file->len);
}
