/* The wire truth of walks over Python frames and of copies of native stacks (python.bpf.c). src/python_walks mirrors it; both
 * sides assert the sizes. */
#ifndef RANKMESH_PYTHON_H
#define RANKMESH_PYTHON_H

/* A thread that is to walk its frames; the key is its number. Where things lie is known to who asks: offsets in the
 * interpreter's structures differ from version to version. */
struct rm_py_asked {
  unsigned long long state;  /* its PyThreadState; 0: its native stack is wanted */
  unsigned long long number; /* of the request; 0: nothing is asked */
  unsigned int frame_at;     /* in the thread state: its innermost frame, or … */
  int inner_at;              /* … what points to that from here on; negative: the frame itself */
  unsigned int code_at, previous_at, instruction_at, owner_at, tlbc_at; /* in a frame; 0 where a version has none */
  unsigned int instruction_bytes; /* 4 or 8 */
};

struct rm_py_frame {
  unsigned long long address;
  unsigned long long code;
  unsigned long long instruction;
  int tlbc;
  unsigned char owner;
  unsigned char pad[3];
};

#define RM_PY_FRAMES 384
struct rm_py_walk {
  unsigned int tid;
  unsigned int count;
  unsigned long long number;
  unsigned int complete; /* 1: the outermost frame was reached */
  unsigned int kind;     /* RM_WALK_FRAMES */
  struct rm_py_frame frames[RM_PY_FRAMES];
};

/* The registers and the top of the stack of a thread in its own code: 16 KiB, or as far as it is mapped, in pieces. */
#define RM_STACK_PIECE 512
#define RM_STACK_PIECES 32
struct rm_stack_copy {
  unsigned int tid;
  unsigned int bytes;
  unsigned long long number;
  unsigned int pad;
  unsigned int kind; /* RM_WALK_STACK */
  unsigned long long pc, sp, fp;
  unsigned char stack[RM_STACK_PIECE * RM_STACK_PIECES];
};

enum { RM_WALK_FRAMES = 0, RM_WALK_STACK = 1 };

_Static_assert(sizeof(struct rm_py_asked) == 48, "src/python_walks writes 48 bytes");
_Static_assert(sizeof(struct rm_py_frame) == 32, "src/python_walks reads 32 bytes");
_Static_assert(__builtin_offsetof(struct rm_py_walk, frames) == 24, "src/python_walks reads 24 bytes before the frames");
_Static_assert(__builtin_offsetof(struct rm_stack_copy, stack) == 48, "src/python_walks reads 48 bytes before the stack");
_Static_assert(__builtin_offsetof(struct rm_stack_copy, kind) == __builtin_offsetof(struct rm_py_walk, kind), "one place for it");

#endif
