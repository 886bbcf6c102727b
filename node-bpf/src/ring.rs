//! Reading the ring buffer between the BPF programs and us, with each of its pages mapped once:
//! libbpf's reader maps the data twice in a row, so that no record is split at the end, and its
//! pages count twice as the agent's memory. Here the few split records are copied together. `wire`
//! parses the records.
//!
//! Layout and protocol: Linux, Documentation/bpf/ringbuf.rst and kernel/bpf/ringbuf.c. The first
//! page has the reader's position (ours to write), the second the writer's, then come the data.
//! Positions only grow. A record begins with eight bytes, of which the first four are its length
//! and two flags; records are aligned to eight bytes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore, MapHandle};

/// Flags in a record's length: it is still being written; it was discarded.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER_BYTES: usize = 8;
/// The read position is published after this much of the ring has been read (of small ones an
/// eighth).
const PUBLISH_BYTES: usize = 16 << 10;

/// Pointers to positions and data.
#[derive(Debug)]
struct Pages {
    consumer: NonNull<AtomicUsize>,
    producer: NonNull<AtomicUsize>,
    data: NonNull<u8>,
    /// A power of two.
    data_bytes: usize,
}

impl Pages {
    /// Passes complete records to `take`, up to the first that is not, and at most as many bytes as the
    /// ring has: who writes as fast as we read does not keep us here. False when there may be more.
    ///
    /// # Safety
    /// The pointers are valid, the data aligned to eight bytes, and nobody else reads the ring.
    unsafe fn consume(&self, spare: &mut Vec<u8>, mut take: impl FnMut(&[u8])) -> bool {
        // SAFETY: the caller's promise; the writer's position is only ever read.
        let (consumer, producer) = unsafe { (self.consumer.as_ref(), self.producer.as_ref()) };
        let began = consumer.load(Ordering::Acquire);
        let (mut at, mut published) = (began, began);
        let all = loop {
            if at == producer.load(Ordering::Acquire) {
                break true;
            }
            if at.wrapping_sub(began) >= self.data_bytes {
                break false;
            }
            let offset = at & (self.data_bytes - 1);
            // SAFETY: records begin at multiples of eight bytes, so the header lies within the
            // data.
            let header = unsafe { self.data.add(offset).cast::<AtomicU32>().as_ref() }.load(Ordering::Acquire);
            if header & BUSY != 0 {
                break false;
            }
            let len = (header & !(BUSY | DISCARDED)) as usize;
            if header & DISCARDED == 0 && len <= self.data_bytes {
                let begin = (offset + HEADER_BYTES) & (self.data_bytes - 1);
                let first = len.min(self.data_bytes - begin);
                // SAFETY: both parts lie within the data, and the writer leaves them alone until
                // `consumer` has passed.
                let (head, tail) = unsafe {
                    let head = std::slice::from_raw_parts(self.data.add(begin).as_ptr(), first);
                    (head, std::slice::from_raw_parts(self.data.as_ptr(), len - first))
                };
                if tail.is_empty() {
                    take(head);
                } else {
                    spare.clear();
                    spare.extend_from_slice(head);
                    spare.extend_from_slice(tail);
                    take(spare);
                }
            }
            at = at.wrapping_add((len + HEADER_BYTES).next_multiple_of(8));
            // Only now and then: every writer reads it, and each time that it has changed waits for
            // its cache line.
            if at.wrapping_sub(published) >= PUBLISH_BYTES.min(self.data_bytes / 8) {
                consumer.store(at, Ordering::Release);
                published = at;
            }
        };
        consumer.store(at, Ordering::Release);
        all
    }
}

/// A mapping, taken back when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    pub(crate) fn new(fd: i32, bytes: usize, protection: libc::c_int, offset: usize) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice; the result is checked.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, bytes })
    }

    /// Its first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever holds pointers into it is dropped with it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The only reader of a ring buffer.
#[derive(Debug)]
pub(crate) struct Ring {
    pages: Pages,
    _mappings: [Mapping; 2],
    signal: RingSignal,
    spare: Vec<u8>,
}

/// Waits for the programs that fill a ring; also while another thread reads it.
#[derive(Debug)]
pub(crate) struct RingSignal {
    epoll: OwnedFd,
}

impl RingSignal {
    /// Waits until the programs wake us, at most this long.
    pub(crate) fn wait(&self, most: Duration) {
        let most_ms = libc::c_int::try_from(most.as_millis()).unwrap_or(libc::c_int::MAX);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for one event. Interrupted is as good as timed out.
        unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &mut event, 1, most_ms) };
    }

    /// Another handle of it.
    pub(crate) fn try_clone(&self) -> io::Result<RingSignal> {
        Ok(RingSignal { epoll: self.epoll.try_clone()? })
    }
}

// SAFETY: the pointers lead into mappings that this value owns and that are not bound to a thread;
// what is shared with the kernel is atomic, and reading takes `&mut`.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring buffer `map` of `data_bytes` (its `max_entries`).
    pub(crate) fn open(map: &MapHandle) -> io::Result<Self> {
        let (fd, data_bytes) = (map.as_fd().as_raw_fd(), map.max_entries() as usize);
        // SAFETY: sysconf has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(io::Error::other)?;
        let ours = Mapping::new(fd, page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let theirs = Mapping::new(fd, page + data_bytes, libc::PROT_READ, page)?;
        let pages = Pages {
            consumer: ours.start.cast(),
            producer: theirs.start.cast(),
            // SAFETY: the data follow the writer's page in the same mapping.
            data: unsafe { theirs.start.add(page) },
            data_bytes,
        };
        // SAFETY: takes no pointers; the result is checked.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        // Edge-triggered: only when the programs signal, not whenever there is a record.
        let mut wanted = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: `wanted` lives through the call.
        if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut wanted) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring { pages, _mappings: [ours, theirs], signal: RingSignal { epoll }, spare: vec![] })
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.data_bytes
    }

    /// What tells that there is something to be read.
    pub(crate) fn signal(&self) -> &RingSignal {
        &self.signal
    }

    /// Passes complete records to `take`, of at most as many bytes as the ring has; false when one is
    /// still being written, or there were more: some may be left.
    pub(crate) fn consume(&mut self, take: impl FnMut(&[u8])) -> bool {
        // SAFETY: the mappings live as long as this value, and `&mut` makes us the only reader of
        // it.
        unsafe { self.pages.consume(&mut self.spare, take) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of 64 bytes in our own memory, and the writer's side of it.
    struct Fake {
        words: Box<[u64; 8]>,
        positions: Box<[AtomicUsize; 2]>,
    }

    impl Fake {
        fn new() -> Self {
            Fake { words: Box::new([0; 8]), positions: Box::default() }
        }
        fn write(&mut self, bytes: &[u8], flags: u32) {
            let at = self.positions[1].load(Ordering::Relaxed);
            let header = (bytes.len() as u32 | flags).to_ne_bytes().into_iter().chain([0; 4]);
            for (i, byte) in header.chain(bytes.iter().copied()).enumerate() {
                let offset = (at + i) % 64;
                let word = &mut self.words[offset / 8];
                let mut all = word.to_ne_bytes();
                all[offset % 8] = byte;
                *word = u64::from_ne_bytes(all);
            }
            self.positions[1].store(at + (bytes.len() + 8).next_multiple_of(8), Ordering::Relaxed);
        }
        fn read(&mut self) -> Vec<Vec<u8>> {
            self.read_all().0
        }
        fn read_all(&mut self) -> (Vec<Vec<u8>>, bool) {
            let pages = Pages {
                consumer: NonNull::from(&self.positions[0]),
                producer: NonNull::from(&self.positions[1]),
                data: NonNull::from(&mut *self.words).cast(),
                data_bytes: 64,
            };
            let mut got = vec![];
            // SAFETY: all of it lies in `self`, which nobody else uses now.
            let all = unsafe { pages.consume(&mut vec![], |record| got.push(record.to_vec())) };
            (got, all)
        }
    }

    #[test]
    fn records_come_complete_and_once_also_across_the_end() {
        let mut ring = Fake::new();
        assert!(ring.read().is_empty());
        for round in 0u8..40 {
            let record: Vec<u8> = (0..20 + round % 3).map(|i| i ^ round).collect();
            ring.write(&record, 0);
            ring.write(&[round; 3], if round % 2 == 0 { 0 } else { DISCARDED });
            let mut want = vec![record];
            want.extend((round % 2 == 0).then(|| vec![round; 3]));
            assert_eq!(ring.read(), want);
            assert!(ring.read().is_empty());
        }
    }

    #[test]
    fn who_writes_as_fast_as_we_read_does_not_keep_us() {
        let (mut words, positions) = (Box::new([0_u64; 8]), Box::<[AtomicUsize; 2]>::default());
        let pages = Pages {
            consumer: NonNull::from(&positions[0]),
            producer: NonNull::from(&positions[1]),
            data: NonNull::from(&mut *words).cast(),
            data_bytes: 64,
        };
        // Records without bytes: eight fill the ring. Each that is read is written again.
        positions[1].store(8, Ordering::Relaxed);
        let mut taken = 0;
        // SAFETY: all of it lives here, and nobody else reads.
        let all = unsafe {
            pages.consume(&mut vec![], |_| {
                taken += 1;
                pages.producer.as_ref().fetch_add(8, Ordering::Relaxed);
            })
        };
        assert_eq!((taken, all), (8, false));
    }

    #[test]
    fn what_is_being_written_is_waited_for() {
        let mut ring = Fake::new();
        ring.write(b"done", 0);
        ring.write(b"half", BUSY);
        ring.write(b"behind", 0);
        assert_eq!(ring.read_all(), (vec![b"done".to_vec()], false));
        ring.words[2] &= !u64::from_ne_bytes(u64::from(BUSY).to_ne_bytes());
        assert_eq!(ring.read_all(), (vec![b"half".to_vec(), b"behind".to_vec()], true));
    }
}
