//! What the MPI shim and the NCCL plugin need of the system: nothing but a libc, glibc from 2.17 on
//! or musl, since they run inside the ranks' containers.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use node_bpf::rings::{MPI_SHIM, NCCL_PLUGIN};
use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, Sym};

/// Functions of libc.so.6 of glibc 2.17 and of musl 1.1, `__tls_get_addr` of the loader.
const EVERYWHERE: &[&str] = &[
    "__errno_location",
    "__tls_get_addr",
    "abort",
    "calloc",
    "clock_gettime",
    "close",
    "dl_iterate_phdr",
    "free",
    "getenv",
    "geteuid",
    "gethostname",
    "getpid",
    "memcpy",
    "memset",
    "mkdirat",
    "mmap",
    "open",
    "openat",
    "posix_fallocate",
    "read",
    "sched_yield",
    "snprintf",
    "strchr",
    "strcmp",
    "strlen",
    "strncmp",
    "strrchr",
    "strstr",
    "syscall",
    "unlinkat",
    "write",
];
/// Not called where they are missing.
const WEAK: &[&str] = &["__register_atfork", "dladdr", "dlclose", "dlopen", "dlsym", "pthread_atfork"];

#[test]
fn they_name_no_library_and_no_version() {
    for (name, library) in [("pmpi", MPI_SHIM), ("nccl", NCCL_PLUGIN)] {
        let file = ElfFile64::<object::Endianness>::parse(library).expect("an ELF file");
        let (endian, data) = (file.endian(), file.data());
        let header = file.elf_header();
        let sections = header.sections(endian, data).expect("sections");
        let (dynamic, _) = sections.dynamic(endian, data).expect("readable").expect("a dynamic section");
        let tags: Vec<u32> = dynamic.iter().filter_map(|entry| entry.tag32(endian)).collect();
        assert!(!tags.contains(&elf::DT_NEEDED), "{name} needs a library");
        assert!(!tags.contains(&elf::DT_VERNEED), "{name} needs versions of symbols");
        let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM).expect("dynamic symbols");
        let undefined = symbols.iter().skip(1).filter(|symbol| symbol.is_undefined(endian));
        let mut seen = 0;
        for symbol in undefined {
            seen += 1;
            let symbol_name = symbols.symbol_name(endian, symbol).expect("a name");
            let symbol_name = std::str::from_utf8(symbol_name).expect("text");
            let known = if symbol.st_bind() == elf::STB_WEAK { WEAK } else { EVERYWHERE };
            assert!(known.contains(&symbol_name), "{name} needs {symbol_name}, which some libc does not have");
        }
        assert!(seen > 5, "{name}: {seen} undefined symbols: the table was not read");
    }
}

/// A program against musl, with the shim before it and everything bound at once: it begins, and a
/// call of MPI goes through the shim.
#[test]
fn a_musl_program_starts_with_it() {
    let Ok(found) = Command::new("musl-gcc").arg("--version").stdout(Stdio::null()).status() else {
        eprintln!("skipped: no musl-gcc (apt-get install musl-tools)");
        return;
    };
    assert!(found.success());
    let dir = tempfile::tempdir().expect("works");
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("shim.so"), MPI_SHIM).expect("works");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/shim_mpi.c");
    let cc = |arguments: &[&str]| {
        let made = Command::new("musl-gcc").arg("-O1").arg(&source).args(arguments).current_dir(dir.path()).status();
        assert!(made.expect("works").success(), "musl-gcc {arguments:?}");
    };
    cc(&["-DLIBRARY", "-shared", "-fPIC", "-o", "libmpi.so"]);
    let library = path("libmpi.so").display().to_string();
    cc(&["-o", "program", "-pthread", &library, "-Wl,-rpath,$ORIGIN"]);
    let mut child = Command::new(path("program"))
        .args(["2", "10"])
        .env("LD_PRELOAD", path("shim.so"))
        .env("RANKMESH_RING_DIR", path("rings"))
        .env_remove("SLURMD_NODENAME")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"\n").expect("reads");
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout.starts_with(b"called "), "{:?}: {said}", output.status);
    let rings = std::fs::read_dir(path("rings/host")).expect("made").count();
    assert_eq!(rings, 1, "its calls went into a ring");
}
