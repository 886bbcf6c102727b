//! A file system in user space with one program in it, answered by a thread of the test.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// Mounted until it is dropped.
pub(super) struct Fuse {
    at: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Fuse {
    /// One with a file "program" of these bytes. None where it cannot be mounted.
    pub(super) fn with_program(at: &Path, program: Vec<u8>) -> Option<Fuse> {
        let device = match File::options().read(true).write(true).open("/dev/fuse") {
            Ok(device) => device,
            Err(error) => {
                eprintln!("skipped: no /dev/fuse: {error}");
                return None;
            }
        };
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let text = |text: &str| CString::new(text).unwrap();
        let (source, target) = (text("rankmesh-test"), text(at.to_str().unwrap()));
        let (kind, options) = (text("fuse"), text(&options));
        // SAFETY: five strings that end with a zero byte, and live until it returns.
        let mounted = unsafe {
            libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast::<libc::c_void>())
        };
        if mounted != 0 {
            eprintln!("skipped: no FUSE: {}", std::io::Error::last_os_error());
            return None;
        }
        let thread = std::thread::spawn(move || answer(device, &program));
        Some(Fuse { at: at.to_owned(), thread: Some(thread) })
    }

    pub(super) fn program(&self) -> PathBuf {
        self.at.join("program")
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let target = CString::new(self.at.to_str().unwrap()).unwrap();
        // SAFETY: a string that ends with a zero byte.
        let left = unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        if left == 0 {
            self.thread.take().map(JoinHandle::join); // it ends with the mount
        }
    }
}

/// Answers the kernel (`linux/fuse.h`): requests begin with 40 bytes, answers with 16.
fn answer(mut device: File, program: &[u8]) {
    let mut request = vec![0; 1 << 20];
    while let Ok(length) = device.read(&mut request) {
        let number = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let (kind, unique, node) = (word(4), number(8), number(16));
        let body: Result<Vec<u8>, i32> = match kind {
            26 => Ok(words(&[7, 31, 65_536, 0, 16, 65_536, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])), // INIT
            1 if request[40..length].starts_with(b"program\0") => {
                // LOOKUP: node, generation, how long both are valid, attributes
                Ok([[2_u64, 0, 60, 60].map(u64::to_ne_bytes).concat(), words(&[0, 0]), attributes(2, program.len())]
                    .concat())
            }
            1 => Err(libc::ENOENT),
            3 => Ok([60_u64.to_ne_bytes().to_vec(), words(&[0, 0]), attributes(node, program.len())].concat()), // GETATTR
            14 | 27 => Ok(words(&[0, 0, 2, 0])), // OPEN, OPENDIR: what is cached stays
            15 => {
                // READ
                let from = usize::try_from(number(48)).unwrap().min(program.len());
                let to = (from + word(56) as usize).min(program.len());
                Ok(program[from..to].to_vec())
            }
            17 => Ok(vec![0; 80]),      // STATFS
            18 | 25 | 29 => Ok(vec![]), // RELEASE, FLUSH, RELEASEDIR
            2 | 36 | 42 => continue,    // FORGET, INTERRUPT, BATCH_FORGET: nobody waits
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = body.map_or_else(|error| (-error, vec![]), |body| (0, body));
        let length = u32::try_from(16 + body.len()).unwrap();
        let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes()].concat();
        let _ = device.write(&[head, body].concat()); // whoever asked may be gone
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The directory (1), or the program.
fn attributes(node: u64, bytes: usize) -> Vec<u8> {
    let (mode, size) = if node == 1 { (0o040_755, 0) } else { (0o100_755, bytes as u64) };
    let times = [node, size, size.div_ceil(512), 0, 0, 0].map(u64::to_ne_bytes).concat();
    [times, words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])].concat()
}
