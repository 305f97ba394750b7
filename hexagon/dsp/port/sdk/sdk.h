/* What the phone's port has beyond port.h, for its own skel.c. */
#ifndef TANDEM_SDK_H
#define TANDEM_SDK_H

#include <stdbool.h>
#include <stdint.h>

/* Tells the platform that we compute; its code where it refuses, else 0. */
int sdk_enlist(void);

/* On-chip memory there is in all; 0 where the platform does not say. */
uint32_t sdk_vtcm_bytes(void);
/* Gives on-chip memory back for good. */
void sdk_vtcm_return(void);

/* Vector units, at least 1. */
uint32_t sdk_vector_units(void);

/* Votes are held. */
bool sdk_powered(void);

#endif
