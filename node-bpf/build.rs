//! Compiles the BPF programs with clang for the target's argument-passing convention, against
//! libbpf's own headers; src/loader.rs embeds the objects. Also compiles the MPI shim and the NCCL
//! plugin, shared libraries of plain C, which src/rings embeds.
//!
//! (Not by libbpf-cargo, whose command line and log would be a tenth of a first build.)

use std::env;
use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The BPF objects: name, source, and macros defined for it.
const OBJECTS: &[(&str, &str, &str)] = &[
    ("capture", "capture", "-DRM_FULL"),
    ("capture-basic", "capture", "-DRM_BASIC"),
    ("stub", "stub", "-DRM_BASIC"),
    ("empty", "empty", "-DRM_FULL"),
    ("python", "python", "-DRM_FULL"),
    ("requests", "requests", "-DRM_FULL"),
];

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let target = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    // The programs' line information names no folder of the machine that built them.
    let here = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let headers = out.join("libbpf");
    if let Err(error) = write_headers(&headers) {
        eprintln!("node-bpf: libbpf's headers cannot be written to {}: {error}", headers.display());
        std::process::exit(1);
    }
    // Both, so that a change on one kind of machine does not break the other unnoticed; ours is the
    // one embedded.
    for (rust_name, kernel_name) in [("x86_64", "x86"), ("aarch64", "arm64")] {
        for (object, source, define) in OBJECTS {
            let name = match rust_name == target {
                true => format!("{object}.bpf.o"),
                false => format!("{object}-{kernel_name}.bpf.o"),
            };
            let file = out.join(name);
            let flags = [
                "-mcpu=v3",
                "-Wall",
                define,
                &format!("-D__TARGET_ARCH_{kernel_name}"),
                &format!("-ffile-prefix-map={here}=node-bpf"),
                &format!("-ffile-prefix-map={}=libbpf", headers.display()),
                "-I",
                &headers.to_string_lossy(),
            ];
            let built = compile(&format!("src/bpf/{source}.bpf.c"), &flags, &file);
            let packed = built.and_then(|()| pack(&file).map_err(|error| error.to_string()));
            if let Err(error) = packed {
                eprintln!("node-bpf: the BPF programs do not compile for {rust_name}: {error}");
                eprintln!("node-bpf: needed: apt-get install clang libelf-dev zlib1g-dev (clang 14 or later)");
                std::process::exit(1);
            }
        }
    }
    shim(&out);
    if !["x86_64", "aarch64"].contains(&target.as_str()) {
        eprintln!("node-bpf: capture is written for x86_64 and aarch64, not for {target}");
        std::process::exit(1);
    }
}

/// Writes the headers of the libbpf that loads the programs, for `#include <bpf/…>`.
fn write_headers(folder: &Path) -> std::io::Result<()> {
    let below = folder.join("bpf");
    std::fs::create_dir_all(&below)?;
    libbpf_sys::API_HEADERS.iter().try_for_each(|(name, text)| std::fs::write(below.join(name), text))
}

/// Compiles one program. libbpf's linker then leaves out DWARF, and with it the names of folders.
fn compile(source: &str, flags: &[&str], object: &Path) -> Result<(), String> {
    let raw = object.with_extension("unlinked");
    let made = Command::new("clang")
        .args(flags)
        .args(["-fno-stack-protector", "-g", "-O2", "-target", "bpf", "-c", source, "-o"])
        .arg(&raw)
        .status()
        .map_err(|error| format!("clang: {error}"))?;
    if !made.success() {
        return Err(format!("clang ended with {made}"));
    }
    link(&raw, object)?;
    std::fs::remove_file(&raw).map_err(|error| error.to_string())
}

/// Writes an object as libbpf's linker does.
fn link(raw: &Path, object: &Path) -> Result<(), String> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string());
    let (from, to) = (name(raw)?, name(object)?);
    // SAFETY: both names end with a zero and outlive the calls, null stands for the default options,
    // and the linker is used until it is freed.
    let failed = unsafe {
        let linker = libbpf_sys::bpf_linker__new(to.as_ptr(), std::ptr::null_mut());
        if linker.is_null() {
            return Err(format!("{}: {}", object.display(), std::io::Error::last_os_error()));
        }
        let added = libbpf_sys::bpf_linker__add_file(linker, from.as_ptr(), std::ptr::null());
        let linked = if added == 0 { libbpf_sys::bpf_linker__finalize(linker) } else { added };
        libbpf_sys::bpf_linker__free(linker);
        linked
    };
    if failed == 0 {
        return Ok(());
    }
    Err(format!("linking {}: {}", object.display(), std::io::Error::from_raw_os_error(-failed)))
}

/// Compresses an object into a file in its directory: the large ones go into the binary that way.
fn pack(object: &Path) -> std::io::Result<()> {
    let mut name = object.as_os_str().to_owned();
    name.push(".gz");
    let mut packed = flate2::write::GzEncoder::new(std::fs::File::create(name)?, flate2::Compression::best());
    packed.write_all(&std::fs::read(object)?)?;
    packed.finish().map(drop)
}

/// The libraries that ranks load where there is no eBPF. They run inside the ranks' container,
/// whose libc may be older than the host's, or musl: they are linked against nothing, and name no
/// version of a symbol (src/shim/ring.c). `RANKMESH_SHIM_CC` (a command and its first arguments, as
/// words) compiles them instead of the target's compiler.
fn shim(out: &std::path::Path) {
    println!("cargo:rerun-if-changed=src/shim");
    let target = env::var("TARGET").unwrap_or_default().replace('-', "_");
    let names = ["RANKMESH_SHIM_CC".to_owned(), format!("CC_{target}"), "CC".to_owned()];
    for name in &names {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let compiler = names.iter().find_map(|name| env::var(name).ok()).unwrap_or_else(|| "cc".to_owned());
    let mut words = compiler.split_whitespace();
    let program = words.next().unwrap_or("cc");
    let mut first: Vec<&str> = words.collect();
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "aarch64") {
        first.push("-mno-outline-atomics"); // these are libgcc's
    }
    for (source, library) in [("src/shim/pmpi.c", "librankmesh_pmpi.so"), ("src/shim/nccl.c", "librankmesh_nccl.so")] {
        let (object, library) = (out.join(library).with_extension("o"), out.join(library));
        // (Each step by itself: zig knows no headers of libc where it is told to link none. -g0: it
        // adds debug information by itself, and with it the name of this folder.)
        let mut compile = Command::new(program);
        compile.args(&first).args(["-c", "-fPIC", "-O2", "-g0", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]);
        compile.args(["-U_FORTIFY_SOURCE", "-fno-stack-protector", source, "-o"]).arg(&object);
        // NCCL unloads its plugin with its last communicator, and loads it again with the next: it
        // stays as it is.
        let mut link = Command::new(program);
        link.args(&first).args(["-shared", "-nostdlib", "-g0", "-Wl,-z,nodelete", "-o"]).arg(&library).arg(&object);
        for mut step in [compile, link] {
            let made = step.status();
            if !made.as_ref().is_ok_and(std::process::ExitStatus::success) {
                eprintln!("node-bpf: {compiler} does not compile {source} ({made:?}); needed: apt-get install gcc");
                std::process::exit(1);
            }
        }
    }
}
