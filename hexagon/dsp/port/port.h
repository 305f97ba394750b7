/* What differs between the phone (port/sdk) and a POSIX system (port/emulator: qemu-hexagon in
 * CI, the host under the sanitizers). */
#ifndef TANDEM_PORT_H
#define TANDEM_PORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../include/packet.h"

/* Starts a thread that runs `body(context)`; false where the system refuses. */
struct port_thread;
struct port_thread *port_thread_start(void (*body)(void *), void *context);
/* Waits for its end. */
void port_thread_join(struct port_thread *thread);

/* Sleeps while `*word` is `value`; may return early. */
void port_wait(_Atomic uint32_t *word, uint32_t value);
/* Wakes all who sleep on any word. */
void port_wake(void);

/* On-chip memory for the whole session, aligned to 4096; NULL where there is none. */
void *port_vtcm(uint32_t bytes);

/* Makes a window of a shared file visible; NULL where the system refuses. */
void *port_map(uint32_t file, uint64_t file_offset, uint32_t bytes, bool read_only);
void port_unmap(void *memory, uint32_t bytes);

/* Memory of maps is seen by three: this processor through its caches, the DMA engines past them,
 * and the host past them. So what the processor writes has to be cleaned before the others read
 * it, and what the others write is seen once the cached lines are dropped. The executor keeps
 * memory true between packets: clean after the processor wrote, invalidate after DMA did.
 * On-chip memory is the same for all. */

/* Writes cached lines of these bytes back. */
void port_clean(const void *memory, size_t bytes);
/* Drops cached lines of these bytes; what was not cleaned is lost. */
void port_invalidate(const void *memory, size_t bytes);
/* As port_invalidate, at the start of a batch, of what the host may have written since the last
 * one; nothing to do where the queue itself sees to that. */
void port_host_wrote(const void *memory, size_t bytes);

/* `rows` rows of `width` bytes. Both ends lie in on-chip memory or in a map; where both lie in
 * maps the bytes go through the engine, not through on-chip memory. Strides in bytes. */
struct port_copy {
    void *to;
    const void *from;
    uint32_t rows, width, to_stride, from_stride;
};

/* Starts a copy by the calling thread's DMA engine, behind those it was given before. */
void port_dma_start(const struct port_copy *copy);
/* Waits until at most `left` of the calling thread's copies are under way. */
void port_dma_wait(uint32_t left);
/* Bytes that all engines have carried from or to memory so far. */
uint64_t port_dma_bytes(void);

/* Puts these votes, checked, in place of the ones before and returns when they hold; false where
 * the platform refuses. Called by one thread at a time, never while a batch runs. With the clock
 * off on-chip memory may lose what it holds; in emulation it surely does. */
bool port_power(const struct tdm_power *votes);

/* Around every batch, while votes are held. Before: on-chip memory is ours again if it was lent;
 * false where the platform does not return it. After: the other side sees what was written, this
 * side will see what it writes, and on-chip memory that another process waits for is lent. What
 * it held may be lost between batches. */
bool port_before_batch(void);
void port_after_batch(void);

/* Instructions run by this thread, all and vector ones, where somebody counts them. */
void port_counters(uint64_t *instructions, uint64_t *vector_instructions);

#endif
