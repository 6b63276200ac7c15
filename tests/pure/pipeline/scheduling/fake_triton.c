/* The handful of Triton functions that the admission hook calls, over data the test sets. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char* config = "{}";
static int failing_input = 0;
static int errors_alive = 0;

void set_config(const char* json) { config = json; }
void set_failing_input(int fails) { failing_input = fails; }
int get_errors_alive(void) { return errors_alive; }

void* TRITONSERVER_ErrorNew(int code, const char* text) { (void)code; errors_alive++; return strdup(text); }
void TRITONSERVER_ErrorDelete(void* error) { errors_alive--; free(error); }
void* TRITONBACKEND_ModelConfig(void* model, uint32_t version, void** message) {
  (void)model; (void)version; *message = (void*)config; return NULL;
}
void* TRITONSERVER_MessageSerializeToJson(void* message, const char** base, size_t* bytes) {
  *base = message; *bytes = strlen(message); return NULL;
}
void* TRITONSERVER_MessageDelete(void* message) { (void)message; return NULL; }
void* TRITONBACKEND_RequestInput(void* request, const char* name, void** input) {
  if (failing_input || strcmp(name, "message") != 0) return TRITONSERVER_ErrorNew(2, "no such input");
  *input = request; return NULL;
}
void* TRITONBACKEND_InputBuffer(void* input, uint32_t index, const void** buffer, uint64_t* bytes, int* type, int64_t* id) {
  (void)index; (void)type; (void)id; *buffer = input; *bytes = 12; return NULL;
}
