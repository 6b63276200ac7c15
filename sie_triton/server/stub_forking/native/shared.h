/* Names and numbers that Python knows too: see stubs.py and system/processes/pids.py. */
#define REAL_STUB "real_stub"
#define DECLINED 121
#define UNSUITED 122
#define HANDLE 500
