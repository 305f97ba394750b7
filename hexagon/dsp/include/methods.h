/* The methods of the DSP's library, as FastRPC calls them on the phone.
 *
 * `tandem_skel_handle_invoke` is the library's one exported name. FastRPC itself has methods 0
 * (open) and 1 (close). A method that ran returns 0 and says in its answer how it went, since
 * FastRPC drops the answer otherwise. Batches do not come this way: they are
 * messages of 64 bytes (packet.h) in a dspqueue.
 *
 * All values are little-endian. hexagon/src/fastrpc/methods.rs mirrors this file by hand; its
 * tests compare every TDM_ number and every TDM_FIELD line.
 */
#ifndef TANDEM_METHODS_H
#define TANDEM_METHODS_H

#include "packet.h"

#define TDM_METHOD_OPEN 0
#define TDM_METHOD_CLOSE 1
#define TDM_METHOD_START 2 /* tdm_start in, tdm_started out: workers, memory, queue */
#define TDM_METHOD_STOP 3  /* nothing in or out: the queue is left, memory given back */
#define TDM_METHOD_POWER 4 /* tdm_power in, tdm_power_reply out (packet.h) */

/* Where a method failed; `code` is the platform's. */
#define TDM_AT_NOTHING 0 /* it did not fail */
#define TDM_AT_VERSION 1 /* another version of packet.h; code = the library's */
#define TDM_AT_STATE 2   /* started twice */
#define TDM_AT_CLASS 3   /* the platform refused the client's class */
#define TDM_AT_VTCM 4    /* no on-chip memory; code = bytes there are */
#define TDM_AT_QUEUE 5   /* the queue could not be imported */
#define TDM_AT_THREAD 6  /* no thread */

struct tdm_start {
    uint64_t queue;      /* from dspqueue_export */
    uint32_t version;    /* TDM_VERSION of the driver */
    uint32_t workers;    /* threads wanted, 0: as many as there are vector units */
    uint32_t vtcm_bytes; /* on-chip memory wanted, 0: all there is */
    uint32_t unused;
};

struct tdm_started {
    uint32_t at; /* TDM_AT_ */
    uint32_t code;
    uint32_t version; /* of packet.h in the library */
    uint32_t arch;    /* the library was built for: 73 and so on */
    uint32_t workers;
    uint32_t vtcm_bytes;
    uint32_t exact; /* 1: floats are rounded as the reference device does */
    uint32_t unused;
};

TDM_FIELD(tdm_start, queue, 0);
TDM_FIELD(tdm_start, version, 8);
TDM_FIELD(tdm_start, workers, 12);
TDM_FIELD(tdm_start, vtcm_bytes, 16);
TDM_FIELD(tdm_start, unused, 20);
TDM_FIELD(tdm_started, at, 0);
TDM_FIELD(tdm_started, code, 4);
TDM_FIELD(tdm_started, version, 8);
TDM_FIELD(tdm_started, arch, 12);
TDM_FIELD(tdm_started, workers, 16);
TDM_FIELD(tdm_started, vtcm_bytes, 20);
TDM_FIELD(tdm_started, exact, 24);
TDM_FIELD(tdm_started, unused, 28);
_Static_assert(sizeof(struct tdm_start) == 24, "start");
_Static_assert(sizeof(struct tdm_started) == 32, "started");

#endif
