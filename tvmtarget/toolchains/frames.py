"""The C code around a function, so that it runs in a process for another machine: it reads inputs and writes outputs.

The process runs until its standard input ends. A run is one request and one answer, with little-endian numbers:

    request: "TTI1", then for each input its size (uint64) and its bytes
    answer:  "TTO1", the status of the function (int32), then, if it is 0, each output like an input

The function is `int32_t NAME(void *const *inputs, void *const *outputs)`; it returns 0, or the number of an error. On
Linux what it prints goes to the standard error. On a board the frames go through semihosting (Arm IHI 0103), to the
same files of the process that emulates the board.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ANSWER", "REQUEST", "main_source", "startup_source"]

REQUEST = b"TTI1"
ANSWER = b"TTO1"


def main_source(entry: str, inputs: Sequence[int], outputs: Sequence[int], *, is_bare: bool) -> str:
    """Return the C code of `main`.

    Args:
        entry: name of the function.
        inputs: bytes of each input.
        outputs: bytes of each output.
        is_bare: whether the program runs without an operating system, with semihosting.

    Returns:
        C99 with attributes of GCC.
    """
    buffers = [
        f"static uint8_t {name}_{position}[{max(size, 1)}] __attribute__((aligned(64)));"
        for name, sizes in (("input", inputs), ("output", outputs))
        for position, size in enumerate(sizes)
    ]
    tables = [
        f"static void *const {name}s[] = {{{', '.join([*(f'{name}_{at}' for at in range(len(sizes))), '0'])}}};\n"
        f"static const uint64_t {name}_bytes[] = {{{', '.join([*(f'{size}u' for size in sizes), '0'])}}};"
        for name, sizes in (("input", inputs), ("output", outputs))
    ]
    return "\n".join(
        [
            "#include <stddef.h>\n#include <stdint.h>",
            _SEMIHOSTING if is_bare else _POSIX,
            f"extern int32_t {entry}(void *const *inputs, void *const *outputs);",
            *buffers,
            *tables,
            _MAIN % {"entry": entry, "inputs": len(inputs), "outputs": len(outputs)},
        ]
    )


def startup_source() -> str:
    """Return the C code that starts a program on a Cortex-M core, and reports its faults."""
    return _STARTUP


_POSIX = """\
#include <errno.h>
#include <string.h>
#include <unistd.h>
static int from, to;
static int open_frames(void) {
  from = 0;
  to = dup(1);
  return to < 0 || dup2(2, 1) < 0;
}
static int read_bytes(void *data, size_t bytes) {
  while (bytes) {
    ssize_t done = read(from, data, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return 1;
    data = (char *)data + done;
    bytes -= (size_t)done;
  }
  return 0;
}
static int write_bytes(const void *data, size_t bytes) {
  while (bytes) {
    ssize_t done = write(to, data, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return 1;
    data = (const char *)data + done;
    bytes -= (size_t)done;
  }
  return 0;
}
static int fail(const char *message) {
  ssize_t done = write(2, message, strlen(message));
  return done < 0 ? 4 : 3;
}
"""

_SEMIHOSTING = """\
enum { SYS_OPEN = 1, SYS_WRITE0 = 4, SYS_WRITE = 5, SYS_READ = 6 };
int32_t semihost(int32_t operation, const void *argument);
static int32_t from, to;
static int open_frames(void) {
  static const char in[] = "/dev/stdin", out[] = "/dev/stdout";
  const uintptr_t reading[] = {(uintptr_t)in, 1, sizeof in - 1};
  const uintptr_t writing[] = {(uintptr_t)out, 5, sizeof out - 1};
  from = semihost(SYS_OPEN, reading);
  to = semihost(SYS_OPEN, writing);
  return from < 0 || to < 0;
}
static int read_bytes(void *data, size_t bytes) {
  while (bytes) {
    const uintptr_t arguments[] = {(uintptr_t)from, (uintptr_t)data, bytes};
    size_t left = (size_t)semihost(SYS_READ, arguments);
    if (left >= bytes) return 1;
    data = (char *)data + (bytes - left);
    bytes = left;
  }
  return 0;
}
static int write_bytes(const void *data, size_t bytes) {
  while (bytes) {
    const uintptr_t arguments[] = {(uintptr_t)to, (uintptr_t)data, bytes};
    size_t left = (size_t)semihost(SYS_WRITE, arguments);
    if (left >= bytes) return 1;
    data = (const char *)data + (bytes - left);
    bytes = left;
  }
  return 0;
}
static int fail(const char *message) {
  semihost(SYS_WRITE0, message);
  return 3;
}
"""

_MAIN = """\
int main(void) {
  if (open_frames()) return fail("the standard files cannot be opened\\n");
  for (;;) {
    uint8_t magic[4];
    uint64_t size;
    int32_t status;
    size_t i;
    if (read_bytes(magic, 4)) return 0;
    if (magic[0] != 'T' || magic[1] != 'T' || magic[2] != 'I' || magic[3] != '1') return fail("wrong frame\\n");
    for (i = 0; i < %(inputs)d; ++i) {
      if (read_bytes(&size, 8)) return fail("the request ends within a frame\\n");
      if (size != input_bytes[i]) return fail("an input has a wrong size\\n");
      if (read_bytes(inputs[i], (size_t)size)) return fail("the request ends within a frame\\n");
    }
    status = %(entry)s(inputs, outputs);
    if (write_bytes("TTO1", 4) || write_bytes(&status, 4)) return fail("the answer cannot be written\\n");
    for (i = 0; i < %(outputs)d && !status; ++i)
      if (write_bytes(&output_bytes[i], 8) || write_bytes(outputs[i], (size_t)output_bytes[i]))
        return fail("the answer cannot be written\\n");
  }
}
"""

_STARTUP = """\
#include <stdint.h>
extern uint32_t data_load[], data_start[], data_end[], bss_start[], bss_end[], stack_top[];
int main(void);
int32_t semihost(int32_t operation, const void *argument) {
  register int32_t r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}
static void stop(int32_t status) {
  const uint32_t arguments[] = {0x20026, (uint32_t)status}; /* ADP_Stopped_ApplicationExit */
  for (;;) semihost(0x20, arguments);                       /* SYS_EXIT_EXTENDED */
}
void fault(void) {
  static char message[] = "fault: CFSR 0x........, address 0x........\\n";
  const uint32_t values[] = {*(volatile uint32_t *)0xE000ED28, *(volatile uint32_t *)0xE000ED38};
  int i, j;
  for (i = 0; i < 2; ++i)
    for (j = 0; j < 8; ++j) message[14 + 20 * i + j] = "0123456789abcdef"[values[i] >> (28 - 4 * j) & 15];
  semihost(4, message); /* SYS_WRITE0 */
  stop(70);
}
__attribute__((naked)) void reset(void) {
  __asm__ volatile("ldr r0, =stack_top\\n mov sp, r0\\n bl start\\n");
}
__attribute__((used, optimize("no-tree-loop-distribute-patterns"))) void start(void) {
  uint32_t *from = data_load, *to;
#if defined(__ARM_FP) && __ARM_FP
  *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: the FPU, and vectors of an M55 */
  __asm__ volatile("dsb\\n isb");
#endif
  for (to = data_start; to < data_end;) *to++ = *from++;
  for (to = bss_start; to < bss_end;) *to++ = 0;
  stop(main());
}
__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault,
};
"""
