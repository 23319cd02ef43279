/* What is about to be changed is written down first; whoever finds the lock of the dead puts it back.
 *
 * A process is killed between two instructions: what it has stored before is seen by the others, what comes after never was. So the
 * order of the stores is all that matters, and the compiler is the only one to be told.
 */
#include "table.h"

/* Words of eight bytes, from the head of the table on. */
static uint64_t *word_of(struct table *t, uint64_t where)
{
    return (uint64_t *)((char *)t->head + where);
}

void note(struct table *t, const void *where)
{
    struct journal *journal = t->journal;
    uint64_t offset = (uint64_t)((const char *)where - (const char *)t->head) & ~UINT64_C(7);
    uint64_t count = journal->count;
    if (count < MOST_NOTES) {
        journal->note[count].where = offset;
        memcpy(&journal->note[count].was, word_of(t, offset), 8);
    }
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    *(volatile uint64_t *)&journal->count = count + 1;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

void journal_undo(struct table *t)
{
    struct journal *journal = t->journal;
    uint64_t count = journal->count, size = (uint64_t)((char *)&t->slot[t->slots + 1] - (char *)t->head);
    if (count > MOST_NOTES) {
        /* More than could be noted: nothing of the table can be believed. */
        table_empty(t);
    } else {
        while (count--) {
            struct note *one = &journal->note[count];
            if (one->where % 8 || one->where >= size) {
                table_empty(t);
                break;
            }
            memcpy(word_of(t, one->where), &one->was, 8);
        }
    }
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    journal->count = 0;
}
