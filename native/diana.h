/* The vocabulary of the C part: limits as numbers, outcomes, and the table that remembers.
 *
 * Nothing here knows Python; module.c does. Time is whole microseconds, every number stays within +-2**53, and each kernel decides
 * exactly as the Python of the same name in src/diana/algorithms does.
 */
#ifndef DIANA_H
#define DIANA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SECOND_US 1000000
#define NEVER (-1)
#define WHOLE (INT64_C(1) << 53)
#define MOST_SLICES 1000
#define MOST_PARAMS 8

/* Which kernel a state belongs to. Part of a zone's layout: never renumber. */
enum kind { NO_STATE = 0, BUCKET = 1, WINDOW = 2, SLIDING = 3, LOG = 4, NUMBERS = 5, LEDGER = 6 };

struct outcome {
    int allowed;
    int64_t remaining;
    int64_t retry_us; /* of an allowed charge: until more would pass, if the kernel tells it */
    int64_t reset_us, delay_us;
};

/* The state of a bucket (level, stamp, per) or a window (start, count). */
struct words {
    int64_t at[3];
};

/* The ledger of a bucket that something was refunded to: start and sum of each span, the oldest first. */
#define MOST_SPANS 8
struct ledger {
    int64_t spans;
    int64_t number[2 * MOST_SPANS];
};

/* Whether the state is to be written: not on a denial, unless it was stamped anew because the clock was set back. */
int bucket_decide(const int64_t *params, const struct words *state, struct ledger *ledger,
                  int64_t cost, int64_t now, struct words *after, struct outcome *outcome);
int window_decide(const int64_t *params, const struct words *state, int64_t cost, int64_t now,
                  struct words *after, struct outcome *outcome);
void bucket_refund(const int64_t *params, struct words *state, struct ledger *ledger, int64_t cost,
                   int64_t at, int64_t now);
void window_refund(const int64_t *params, struct words *state, int64_t cost, int64_t at, int64_t now);

/* The state of a sliding window: `ring` has slices + 1 counts. */
struct sliding {
    int64_t last, total;
    int64_t ring[MOST_SLICES + 1];
};
/* Changes `state` to what is to be written. */
int sliding_decide(const int64_t *params, struct sliding *state, int is_new, int64_t cost,
                   int64_t now, struct outcome *outcome);
void sliding_refund(const int64_t *params, struct sliding *state, int64_t cost, int64_t at,
                    int64_t now);

static inline int is_whole(int64_t number) { return -WHOLE < number && number < WHOLE; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* SipHash-2-4 with 128 bits, the secret chosen per table: nobody can choose keys that meet. */
struct hash {
    uint64_t half[2];
};
struct hash_state {
    uint64_t v0, v1, v2, v3;
    uint64_t length;
};
void hash_begin(struct hash_state *state, const uint8_t secret[16]);
/* Only whole words of 8 bytes; what is left goes to hash_end. */
void hash_words(struct hash_state *state, const uint8_t *bytes, size_t length);
struct hash hash_end(const struct hash_state *begun, const uint8_t *bytes, size_t length);

#endif
