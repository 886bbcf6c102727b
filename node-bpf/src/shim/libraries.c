/* The functions of the MPI library behind the shim, and how they are found. Included by pmpi.c. */
#include <dlfcn.h>
#include <link.h>

#pragma weak dladdr
#pragma weak dlsym
#pragma weak dlopen
#pragma weak dlclose

/* The MPI libraries that are loaded, counted in the order of the loader. */
struct search {
  int wanted; /* which one */
  char name[4096];
};

/* Only copies a name: it runs under a lock of the loader's, which a thread that loads a library takes after another one of
 * the loader's. Who called dlopen or dlsym from here would take them the other way round, and both would wait for good. */
static int look_at(struct dl_phdr_info *info, size_t size, void *data) {
  struct search *search = data;
  const char *base = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
  (void)size;
  if (!base || strncmp(base, "/libmpi", 7) || search->wanted--) return 0;
  snprintf(search->name, sizeof search->name, "%s", info->dlpi_name);
  return 1;
}

/* In a library that is loaded but not in the global scope (mpi4py, dlopen): the first MPI library that has it. */
static void *found_in_libraries(const char *symbol) {
  void *found = NULL;
  struct search search;
  for (int n = 0; !found; n++) {
    search.wanted = n;
    if (!dlsym || !dlopen || !dl_iterate_phdr(look_at, &search)) return NULL;
    void *library = dlopen(search.name, RTLD_LAZY | RTLD_NOLOAD); /* NULL: it was unloaded meanwhile */
    if (!library) continue;
    found = dlsym(library, symbol);
    if (dlclose) dlclose(library);
  }
  return found;
}

/* NULL: no library has it. */
static function known_next_of(const char *symbol, function *cached) {
  function known = __atomic_load_n(cached, __ATOMIC_RELAXED);
  if (known) return known;
  void *found = dlsym ? dlsym(RTLD_NEXT, symbol) : NULL;
  if (!found) found = found_in_libraries(symbol);
  __atomic_store_n(cached, (function)found, __ATOMIC_RELAXED);
  return (function)found;
}

static function next_of(const char *symbol, function *cached) {
  function found = known_next_of(symbol, cached);
  if (!found) {
    char message[160];
    int length = snprintf(message, sizeof message,
                          "rankmesh: no MPI library has %s; run this program without LD_PRELOAD=librankmesh_pmpi.so\n", symbol);
    if (write(2, message, (size_t)length) < 0) abort();
    abort();
  }
  return found;
}
