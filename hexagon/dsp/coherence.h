/* What keeps memory true: each packet's outputs reach memory before the next packet, whoever
 * wrote them, and no cached line outlives what DMA or the host wrote under it (port/port.h).
 *
 * Compiled with NO_CLEAN or NO_INVALIDATE one half is left out, as in the state copies of a
 * public backend; hexagon/tests/coherence.rs has to see it. */
#ifndef TANDEM_COHERENCE_H
#define TANDEM_COHERENCE_H

#include "executor.h"

/* At the start of a batch, for every packet: its inputs as the host left them. */
void see_inputs(const struct executor *e, const struct packet *p);

/* After a packet has run. */
void settle_outputs(const struct executor *e, const struct packet *p);

/* Whether the packet's operand is written by DMA rather than by the processor. */
bool written_by_dma(const struct packet *p, uint32_t operand);

#endif
