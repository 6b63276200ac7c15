/* The admission hook: Triton's dynamic batcher calls it before each request joins a batch.
 *
 * A request joins while the batch's cost, summed from the int32 behind the seal of the input
 * "message" (pipeline/stages/message.py), stays within the model parameter "max_batch_cost". The first
 * request is always admitted: refusing it would make the batcher spin forever. The plan in `inference` has the final say, because Triton may
 * merge queued payloads without calling the hook.
 *
 * Built as batchstrategy.so in a model directory. Triton's symbols come from the server process,
 * so that no Triton header is needed.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONSERVER_Message TRITONSERVER_Message;
typedef struct TRITONBACKEND_Batcher TRITONBACKEND_Batcher;
typedef struct TRITONBACKEND_Model TRITONBACKEND_Model;
typedef struct TRITONBACKEND_Request TRITONBACKEND_Request;
typedef struct TRITONBACKEND_Input TRITONBACKEND_Input;

extern TRITONSERVER_Error* TRITONBACKEND_ModelConfig(
    TRITONBACKEND_Model*, uint32_t version, TRITONSERVER_Message**);
extern TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(
    TRITONSERVER_Message*, const char** base, size_t* bytes);
extern TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message*);
extern TRITONSERVER_Error* TRITONSERVER_ErrorNew(int code, const char*);
extern void TRITONSERVER_ErrorDelete(TRITONSERVER_Error*);
extern TRITONSERVER_Error* TRITONBACKEND_RequestInput(
    TRITONBACKEND_Request*, const char* name, TRITONBACKEND_Input**);
extern TRITONSERVER_Error* TRITONBACKEND_InputBuffer(
    TRITONBACKEND_Input*, uint32_t index, const void** buffer, uint64_t* bytes,
    int* memory_type, int64_t* memory_type_id);

enum { ERROR_INTERNAL = 1, MEMORY_GPU = 2, SEAL_BYTES = 8 };

/* Per model: the budget. Per batch: the rest of the budget. */
typedef struct { int64_t budget; } Batcher;
typedef struct { int64_t left; bool empty; } Batch;

static bool
failed(TRITONSERVER_Error* error)
{
  if (error) TRITONSERVER_ErrorDelete(error);
  return error != NULL;
}

/* Returns the integer N of "max_batch_cost":{"string_value":"N"} in the configuration; 0 if there is none. */
static int64_t
parse_budget(const char* json, size_t bytes)
{
  static const char key[] = "\"max_batch_cost\"", value[] = "\"string_value\"";
  char* text = strndup(json, bytes);
  char* at = text ? strstr(text, key) : NULL;
  at = at ? strstr(at + sizeof(key) - 1, value) : NULL;
  at = at ? strpbrk(at + sizeof(value) - 1, "0123456789") : NULL;
  int64_t budget = at ? strtoll(at, NULL, 10) : 0;
  free(text);
  return budget;
}

/* The cost of a request; 0 if it has no readable cost. */
static int64_t
request_cost(TRITONBACKEND_Request* request)
{
  TRITONBACKEND_Input* input;
  const void* buffer = NULL;
  uint64_t bytes = 0;
  int memory_type = 0;
  int64_t memory_type_id = 0;
  int32_t cost;
  if (failed(TRITONBACKEND_RequestInput(request, "message", &input))) return 0;
  if (failed(TRITONBACKEND_InputBuffer(input, 0, &buffer, &bytes, &memory_type, &memory_type_id))) return 0;
  if (!buffer || memory_type == MEMORY_GPU || bytes < SEAL_BYTES + sizeof(cost)) return 0;
  memcpy(&cost, (const char*)buffer + SEAL_BYTES, sizeof(cost));
  return cost > 0 ? cost : 0;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model)
{
  TRITONSERVER_Message* config = NULL;
  const char* json = NULL;
  size_t bytes = 0;
  TRITONSERVER_Error* error = TRITONBACKEND_ModelConfig(model, 1, &config);
  if (error) return error;
  int64_t budget = 0;
  if (!failed(TRITONSERVER_MessageSerializeToJson(config, &json, &bytes))) budget = parse_budget(json, bytes);
  failed(TRITONSERVER_MessageDelete(config));
  if (budget <= 0)
    return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "admission hook: parameter max_batch_cost must be a positive integer");
  Batcher* state = malloc(sizeof(Batcher));
  if (!state) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "admission hook: out of memory");
  state->budget = budget;
  *batcher = (TRITONBACKEND_Batcher*)state;
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher)
{
  free(batcher);
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** userp)
{
  Batch* batch = malloc(sizeof(Batch));
  if (!batch) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "admission hook: out of memory");
  *batch = (Batch){.left = ((const Batcher*)batcher)->budget, .empty = true};
  *userp = batch;
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request, void* userp, bool* should_include)
{
  Batch* batch = userp;
  int64_t cost = request_cost(request);
  *should_include = batch->empty || cost <= batch->left;
  if (*should_include) {
    batch->left -= cost;
    batch->empty = false;
  }
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelBatchFinalize(void* userp)
{
  free(userp);
  return NULL;
}
