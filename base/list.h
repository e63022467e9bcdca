/* An intrusive doubly linked ring: embed a struct list in the element, and one as the head.
 * The owner of the head owns the ring; no memory of its own. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev; /* borrowed; point to the list itself when empty or unlinked */
};

static inline void list_init(struct list *l) { l->next = l->prev = l; }
static inline bool list_empty(const struct list *l) { return l->next == l; }

static inline void list_append(struct list *head, struct list *item) {
    item->prev = head->prev;
    item->next = head;
    head->prev->next = item;
    head->prev = item;
}

static inline void list_prepend(struct list *head, struct list *item) {
    list_append(head->next, item);
}

/* Unlinks; harmless for an item that is in no list but was list_init'ed. */
static inline void list_remove(struct list *item) {
    item->prev->next = item->next;
    item->next->prev = item->prev;
    list_init(item);
}

/* The names of types, members and loop variables can't stand in parentheses.
 * NOLINTBEGIN(bugprone-macro-parentheses) */
#define LIST_ITEM(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define LIST_EACH(it, head) for (struct list *it = (head)->next; it != (head); it = it->next)
/* Safe against removing `it` in the body. */
#define LIST_EACH_SAFE(it, head)                                                                   \
    for (struct list *it = (head)->next, *it##_next = it->next; it != (head);                      \
         it = it##_next, it##_next = it->next)
/* NOLINTEND(bugprone-macro-parentheses) */

#endif
