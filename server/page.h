/* The page at "/" and its files: server/web, put into the binary at build time.
 *
 * Everything of it comes from this server, nothing is written into a page by script but text: the
 * content-security policy allows no more than that.  It shows what models and candidates wrote, and
 * both are hostile until shown otherwise.  LOOP thread. */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include "server/http.h"

#include <stddef.h>

/* One file, as embed.cmake writes them; the first is the page itself. */
struct page_file {
    const char *name; /* "page.css": at /web/page.css */
    const char *type; /* Content-Type */
    const char *etag; /* of its contents, in quotes */
    const unsigned char *data;
    size_t len;
};
extern const struct page_file page_files[];
extern const int page_n_files;

/* Answers with the file of this name, "" for the page itself; 304 to who has it already. */
void page_reply(struct http_request *, const char *name);

#endif
