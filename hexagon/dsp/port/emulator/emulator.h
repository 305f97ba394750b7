/* How the host's emulator transport (hexagon/src/emulator.rs) starts this program. */
#ifndef TANDEM_EMULATOR_H
#define TANDEM_EMULATOR_H

/* Descriptors: the shared file, and the socket that carries requests and replies. The program
 * ends when the socket's other end is closed. */
#define EMULATOR_MEMORY 0
#define EMULATOR_SOCKET 1

#endif
