//! Kernel functions by address, from /proc/kallsyms. Read once, when the first process is followed,
//! so that a host without ranks does not keep them: some 200,000 names, of which only the functions
//! are kept (about 4 MB). Where the kernel hides addresses (kernel.kptr_restrict, no CAP_SYSLOG)
//! there are none.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Once};
use std::thread;

use parking_lot::Mutex;

const PATH: &str = "/proc/kallsyms";

/// The file, opened while that showed addresses: the kernel decides at the opening.
static OPENED: Mutex<Option<File>> = Mutex::new(None);

/// Opens the names now, to be read when they are needed.
pub(crate) fn open_ahead() {
    *OPENED.lock() = File::open(PATH).ok();
}

/// The kernel's functions; the same for every capture.
pub(crate) static KERNEL_NAMES: LazyLock<KernelNames> = LazyLock::new(KernelNames::read);

/// Reads the names on a thread of their own: that takes a tenth of a second, in which short-lived
/// processes would be missed.
pub(crate) fn read_ahead() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let reading = thread::Builder::new().name("kernel-names".to_owned());
        BEING_READ.store(true, Ordering::Release);
        let started = reading.spawn(|| {
            LazyLock::force(&KERNEL_NAMES);
            BEING_READ.store(false, Ordering::Release);
        });
        if started.is_err() {
            BEING_READ.store(false, Ordering::Release); // they are read when the first wait is seen
        }
    });
}

static BEING_READ: AtomicBool = AtomicBool::new(false);

/// Whether a look at [`KERNEL_NAMES`] would have to wait for that thread.
pub(crate) fn are_being_read() -> bool {
    BEING_READ.load(Ordering::Acquire)
}

/// Functions sorted by address, names in one text.
#[derive(Debug, Default)]
pub(crate) struct KernelNames {
    /// What `starts` counts from.
    base: u64,
    /// Where a function begins, from `base`, and where its name does. The kernel and its modules
    /// lie within 4 GiB.
    starts: Vec<(u32, u32)>,
    text: String,
}

impl KernelNames {
    fn read() -> Self {
        let opened = OPENED.lock().take();
        let Some(file) = opened.or_else(|| File::open(PATH).ok()) else { return Self::default() };
        Self::parse(BufReader::new(file))
    }

    /// Lines are `address type name`, with a tab and `[module]` behind those of modules.
    fn parse(lines: impl BufRead) -> Self {
        let (mut starts, mut text) = (vec![], String::new());
        for line in lines.split(b'\n').map_while(Result::ok) {
            let Some((address, kind, name)) = parse_line(&line) else { continue };
            if matches!(kind, b't' | b'T' | b'w' | b'W') && address != 0 {
                starts.push((address, u32::try_from(text.len()).unwrap_or(u32::MAX)));
                // parts that the compiler split off or copied get the function's name
                text.push_str(name.split('.').next().unwrap_or_default());
                text.push('\n');
            }
        }
        starts.sort_by_key(|(address, _)| *address);
        // from 2 GiB before the middle one: a stray address far away costs only itself
        let base = starts.get(starts.len() / 2).map_or(0, |(address, _)| address.saturating_sub(1 << 31));
        let near = |(address, at): (u64, u32)| Some((u32::try_from(address.checked_sub(base)?).ok()?, at));
        let starts = starts.into_iter().filter_map(near).collect();
        text.shrink_to_fit();
        Self { base, starts, text }
    }

    /// The function that contains an address.
    pub(crate) fn of(&self, address: u64) -> Option<&str> {
        // an address beyond 4 GiB is after the last function, like every address behind that one
        let from_base = u32::try_from(address.checked_sub(self.base)?).unwrap_or(u32::MAX);
        let after = self.starts.partition_point(|(start, _)| *start <= from_base);
        let (_, at) = self.starts.get(after.checked_sub(1)?)?;
        self.text.get(*at as usize..)?.split('\n').next().filter(|name| !name.is_empty())
    }
}

fn parse_line(line: &[u8]) -> Option<(u64, u8, &str)> {
    let mut words = line.split(|b| *b == b' ' || *b == b'\t');
    let address = u64::from_str_radix(std::str::from_utf8(words.next()?).ok()?, 16).ok()?;
    let kind = *words.next()?.first()?;
    Some((address, kind, std::str::from_utf8(words.next()?).ok()?))
}

#[cfg(test)]
impl KernelNames {
    pub(crate) fn of_text(text: &str) -> Self {
        Self::parse(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_function_before_it() {
        let text = "0000000000003000 T last\n0000000000001000 t first.isra.0\nffff\n0000000000002000 D data\n\
            0000000000002800 t helper\t[module]\n";
        let names = KernelNames::parse(text.as_bytes());
        assert_eq!(names.of(0x0fff), None);
        assert_eq!((names.of(0x1000), names.of(0x27ff)), (Some("first"), Some("first")));
        assert_eq!((names.of(0x2801), names.of(u64::MAX)), (Some("helper"), Some("last")));
    }

    #[test]
    fn a_stray_address_costs_only_itself() {
        let text = "0000000000001000 T stray\nffffffff81000000 T schedule\nffffffff81001000 T io_schedule\n\
            ffffffffc0000000 t helper\t[module]\n";
        let names = KernelNames::parse(text.as_bytes());
        assert_eq!((names.of(0x1800), names.of(0xffff_ffff_8000_0000)), (None, None));
        assert_eq!(names.of(0xffff_ffff_8100_0040), Some("schedule"));
        assert_eq!(names.of(0xffff_ffff_c000_0040), Some("helper"));
    }

    #[test]
    fn hidden_addresses_give_no_names() {
        let names = KernelNames::parse("0000000000000000 T schedule\n".as_bytes());
        assert_eq!(names.of(0xffff_ffff_8100_0000), None);
    }
}
