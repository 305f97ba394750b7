/* Never loaded: what the symbol check of `cargo xtask hexagon` has to find. */
int printf(const char *format, ...);
int HAP_power_set(void *client, void *request);
__attribute__((visibility("default"))) int tandem_skel_handle_invoke(void *request);
int tandem_skel_handle_invoke(void *request) { return HAP_power_set(request, request) + printf("stray"); }
