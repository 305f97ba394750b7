/* Never linked nor run: what the disassembly check of `cargo xtask hexagon` has to find. */
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>

/* Silently wrong under qemu-hexagon 10. */
HVX_Vector words_of_floats(HVX_Vector v) { return Q6_Vw_equals_Vsf(v); }
HVX_Vector floats_of_words(HVX_Vector v) { return Q6_Vsf_equals_Vw(v); }
HVX_Vector shorts_of_halves(HVX_Vector v) { return Q6_Vh_equals_Vhf(v); }
HVX_Vector halves_of_shorts(HVX_Vector v) { return Q6_Vhf_equals_Vh(v); }

/* Trapped on. */
HVX_Vector quick(HVX_Vector a, HVX_Vector b) { return Q6_Vqf32_vadd_VsfVsf(a, b); }
HVX_Vector half(HVX_Vector a, HVX_Vector b) { return Q6_Vqf16_vmpy_VhfVhf(a, b); }
HVX_Vector larger(HVX_Vector a, HVX_Vector b) { return Q6_Vsf_vmax_VsfVsf(a, b); }
void dma(const void *descriptor) { __asm__ volatile("dmstart(%0)" : : "r"(descriptor) : "memory"); }
