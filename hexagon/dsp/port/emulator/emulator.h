/* What the emulator has beyond port.h, and how the host's transport (hexagon/src/emulator.rs)
 * starts the program. */
#ifndef TANDEM_EMULATOR_H
#define TANDEM_EMULATOR_H

#include <stdint.h>

/* Descriptors: the shared file, and the socket that carries requests and replies. The program
 * ends when the socket's other end is closed.
 *
 * The first byte on the socket carries a descriptor (SCM_RIGHTS): the socket for power votes. */
#define EMULATOR_MEMORY 0
#define EMULATOR_SOCKET 1

/* What fills on-chip memory when the votes are released: as floats not a number. */
#define EMULATOR_POISON 0xff

/* From now on threads yield or sleep some microseconds at moments that `seed` picks. */
void emulator_perturb(uint64_t seed);
/* One of those moments. */
void emulator_linger(void);

#endif
