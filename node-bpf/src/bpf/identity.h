/* What the identity of a communicator of MPI is made of: a number that is equal on all its ranks, and another one for every
 * other communicator, made of nothing but what each rank sees itself. The BPF programs (mpi.bpf.h) and the shim
 * (shim/comms.c) make it alike; src/mpi/identity.rs adds the job. docs/capture.md says what it is of each call's. */
#ifndef RANKMESH_IDENTITY_H
#define RANKMESH_IDENTITY_H

/* MPI_COMM_WORLD; all others are named after it. */
#define RM_WORLD 1ull

/* By what a call's communicators are told apart. First of all by the communicator it is made of and the call's position in that,
 * which is the same on all ranks. What follows is needed where one call makes several, each on some of the ranks. */
enum rm_makes {
  RM_MAKES_ONE = 0,       /* one: nothing more */
  RM_MAKES_COPY = 1,      /* one, of the same ranks in the same order (also a window) */
  RM_MAKES_BY_COLOUR = 2, /* argument 1 */
  RM_MAKES_BY_HOST = 3,   /* the host (MPI_COMM_TYPE_SHARED; of other types, argument 1, nothing is known) */
  RM_MAKES_BY_GROUP = 4,  /* the group, argument 1 */
  RM_MAKES_CART = 5,      /* one; argument 1 is the number of dimensions, argument 2 their sizes */
  RM_MAKES_CART_PART = 6, /* the coordinates in the dimensions that argument 1 drops */
  /* Not made by all ranks of a communicator: no position, but a count of what is else the same. */
  RM_MAKES_ALONE = 7,     /* the communicator, the group (argument 1), the tag (argument 2) */
  RM_MAKES_OF_GROUP = 8,  /* the group (argument 0), the text (argument 1) */
  RM_MAKES_INTER = 9,     /* the first members of both groups, their sizes, the tag (argument 4) */
  RM_MAKES_NAMELESS = 10, /* with another job: it has no identity */
};

/* How a group comes to be. Groups that are equal and were made in different ways are taken for different ones. */
enum rm_groups {
  RM_GROUP_OF_COMM = 0,   /* argument 0 */
  RM_GROUP_OF_REMOTE = 1,
  RM_GROUP_INCL = 2,      /* argument 0 is a group, 1 the number of ranks, 2 the ranks */
  RM_GROUP_EXCL = 3,
  RM_GROUP_RANGE_INCL = 4, /* three numbers a range */
  RM_GROUP_RANGE_EXCL = 5,
  RM_GROUP_UNION = 6,     /* arguments 0 and 1 */
  RM_GROUP_INTERSECTION = 7,
  RM_GROUP_DIFFERENCE = 8,
  RM_GROUP_OF_SET = 9,    /* argument 1: the name of a set of processes */
  RM_GROUP_FREE = 10,     /* not one: the handle that argument 0 points to ends */
};

/* Salts, so that one kind's numbers are not another's. */
#define RM_SALT_SELF 0x73656c66ull
#define RM_SALT_GROUP 0x67726f7570ull
#define RM_SALT_ALONE 0x616c6f6e65ull
#define RM_SALT_INTER 0x696e746572ull

/* Of lists and texts no more is looked at than so many numbers or characters. */
#define RM_MOST_LISTED 1024
#define RM_MOST_TEXT 256
/* Of grids no more dimensions. */
#define RM_MOST_DIMS 8

/* Takes a word into an identity. Neither is the other's equal: the identities of the first communicators of a job are made of
 * numbers as small as RM_WORLD. (The steps are those of splitmix64.) */
static inline __attribute__((always_inline)) unsigned long long rm_mix(unsigned long long identity, unsigned long long word) {
  identity = (identity + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
  identity = ((identity ^ identity >> 29) ^ word) * 0x94d049bb133111ebull;
  return identity ^ identity >> 32;
}

#endif
