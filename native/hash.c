/* SipHash-2-4-128, after the paper of Aumasson and Bernstein; tests/native compares it with the published vectors. */
#include "diana.h"

#define TURN(x, by) (((x) << (by)) | ((x) >> (64 - (by))))

static inline void rounds(struct hash_state *s, int count)
{
    while (count--) {
        s->v0 += s->v1; s->v1 = TURN(s->v1, 13); s->v1 ^= s->v0; s->v0 = TURN(s->v0, 32);
        s->v2 += s->v3; s->v3 = TURN(s->v3, 16); s->v3 ^= s->v2;
        s->v0 += s->v3; s->v3 = TURN(s->v3, 21); s->v3 ^= s->v0;
        s->v2 += s->v1; s->v1 = TURN(s->v1, 17); s->v1 ^= s->v2; s->v2 = TURN(s->v2, 32);
    }
}

static inline uint64_t word_at(const uint8_t *bytes)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word;
#else
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        word |= (uint64_t)bytes[i] << 8 * i;
    return word;
#endif
}

void hash_begin(struct hash_state *s, const uint8_t secret[16])
{
    uint64_t k0 = word_at(secret), k1 = word_at(secret + 8);
    s->v0 = UINT64_C(0x736f6d6570736575) ^ k0;
    s->v1 = UINT64_C(0x646f72616e646f6d) ^ k1 ^ 0xee;
    s->v2 = UINT64_C(0x6c7967656e657261) ^ k0;
    s->v3 = UINT64_C(0x7465646279746573) ^ k1;
    s->length = 0;
}

void hash_words(struct hash_state *s, const uint8_t *bytes, size_t length)
{
    s->length += length;
    for (; length >= 8; length -= 8, bytes += 8) {
        uint64_t word = word_at(bytes);
        s->v3 ^= word;
        rounds(s, 2);
        s->v0 ^= word;
    }
}

struct hash hash_end(const struct hash_state *begun, const uint8_t *bytes, size_t length)
{
    struct hash_state s = *begun;
    size_t whole = length & ~(size_t)7;
    hash_words(&s, bytes, whole);
    uint64_t word = (s.length + (length - whole)) << 56;
    for (size_t i = 0; i < length - whole; i++)
        word |= (uint64_t)bytes[whole + i] << 8 * i;
    s.v3 ^= word;
    rounds(&s, 2);
    s.v0 ^= word;
    struct hash found;
    s.v2 ^= 0xee;
    rounds(&s, 4);
    found.half[0] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    s.v1 ^= 0xdd;
    rounds(&s, 4);
    found.half[1] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return found;
}
