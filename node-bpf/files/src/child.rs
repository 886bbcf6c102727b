//! The process that reads. It is the program that links this crate, started again under a name of
//! its own, and gets no further than here: an entry of `.init_array` runs before `main` of any such
//! program, the product, a bench or a test.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::{c_char, c_int};

use crate::confine;
use crate::parse;
use crate::wire::{self, MOST_BYTES, Request, Response};

/// What the program is called when it is to read files.
pub(crate) const NAME: &str = "rankmesh-files";
/// How it ends when it cannot be confined, or has panicked.
pub(crate) const NOT_CONFINED: c_int = 97;
const PANICKED: c_int = 98;

// SAFETY: the loader calls each entry once, with the arguments of `main` (glibc) or without (then
// nothing is read); it does not return into Rust where there is nothing to do.
#[used]
#[unsafe(link_section = ".init_array")]
pub(crate) static ENTRY: extern "C" fn(c_int, *const *const c_char) = entry;

extern "C" fn entry(count: c_int, arguments: *const *const c_char) {
    if count != 1 || arguments.is_null() {
        return;
    }
    // SAFETY: the first of one argument is a C string.
    let name = unsafe { std::ffi::CStr::from_ptr(*arguments) };
    if name.to_bytes() == NAME.as_bytes() {
        std::panic::set_hook(Box::new(|_| exit(PANICKED)));
        exit(serve());
    }
}

fn exit(code: c_int) -> ! {
    // SAFETY: has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Answers until the other end is closed.
fn serve() -> c_int {
    if confine::confine().is_err() {
        return NOT_CONFINED;
    }
    // SAFETY: descriptor 0 is the socket, open as long as this process.
    let socket = unsafe { BorrowedFd::borrow_raw(0) };
    let mut buffer = vec![0; MOST_BYTES];
    loop {
        let (bytes, file) = match wire::receive(socket, &mut buffer) {
            Ok((0, _)) => return 0,
            Ok((bytes, file)) => (bytes, file),
            Err(_) => return 1,
        };
        let answer = answer(&buffer[..bytes], file);
        if wire::send(socket, &wire::response(answer), None).is_err() {
            return 1;
        }
    }
}

fn answer(request: &[u8], file: Option<OwnedFd>) -> Response {
    let (Some(Request { question, bytes, cpu_ms }), Some(file)) = (wire::decode(request), file) else {
        return Err("a question that is none".to_owned());
    };
    spend_at_most(cpu_ms);
    let mapped = Mapped::of(file, bytes).map_err(|error| format!("it cannot be mapped: {error}"))?;
    let answer = parse::answer(&question, mapped.bytes());
    spend_at_most(0);
    answer
}

/// The process ends (SIGPROF) when it has used so much CPU time; 0: no such end.
fn spend_at_most(cpu_ms: u32) {
    let left = libc::timeval {
        tv_sec: libc::time_t::from(cpu_ms / 1_000),
        tv_usec: libc::suseconds_t::from(cpu_ms % 1_000 * 1_000),
    };
    let timer = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: left };
    // SAFETY: the pointer is to a value that lives through the call.
    unsafe { libc::syscall(libc::SYS_setitimer, libc::ITIMER_PROF, &raw const timer, std::ptr::null::<()>()) };
}

/// A file in memory. Its pages are the kernel's; one that is cut short meanwhile ends this process
/// (SIGBUS).
struct Mapped {
    at: *mut libc::c_void,
    bytes: usize,
}

impl Mapped {
    fn of(file: OwnedFd, bytes: u64) -> io::Result<Mapped> {
        use std::os::fd::AsRawFd;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let descriptor = file.as_fd().as_raw_fd();
        // Shared: into private mappings the kernel puts the breakpoints of probes, also of our own.
        // SAFETY: asks for new memory, at no address of ours.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, descriptor, 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Mapped { at, bytes }) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for reading until this is dropped. That another process may write to the
        // file is as for any mapped file; this process has nothing that it could be led to betray.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.bytes) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: what `mmap` has returned, once.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}
