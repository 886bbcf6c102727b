//! Kernel functions by address, from /proc/kallsyms. Read once, when first needed: some 200,000 names, of which only the
//! functions are kept (about 5 MB). Where the kernel hides addresses (kernel.kptr_restrict, no CAP_SYSLOG) there are none.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::{Mutex, PoisonError};

const PATH: &str = "/proc/kallsyms";

/// The file, opened while that showed addresses: the kernel decides at the opening.
static OPENED: Mutex<Option<File>> = Mutex::new(None);

/// Opens the names now, to be read when they are needed.
pub(crate) fn open_ahead() {
    *OPENED.lock().unwrap_or_else(PoisonError::into_inner) = File::open(PATH).ok();
}

/// Functions sorted by address, names in one text.
#[derive(Debug, Default)]
pub(crate) struct KernelNames {
    starts: Vec<(u64, u32)>,
    text: String,
}

impl KernelNames {
    pub(crate) fn read() -> Self {
        let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(file) = opened.or_else(|| File::open(PATH).ok()) else { return Self::default() };
        Self::parse(BufReader::new(file))
    }

    /// Lines are `address type name`, with a tab and `[module]` behind those of modules.
    fn parse(lines: impl BufRead) -> Self {
        let mut names = Self::default();
        for line in lines.split(b'\n').map_while(Result::ok) {
            let Some((address, kind, name)) = parse_line(&line) else { continue };
            if matches!(kind, b't' | b'T' | b'w' | b'W') && address != 0 {
                names.starts.push((address, u32::try_from(names.text.len()).unwrap_or(u32::MAX)));
                names.text.push_str(name);
                names.text.push('\n');
            }
        }
        names.starts.sort_by_key(|(address, _)| *address);
        names
    }

    /// The function that an address lies in.
    pub(crate) fn of(&self, address: u64) -> Option<&str> {
        let after = self.starts.partition_point(|(start, _)| *start <= address);
        let (_, at) = self.starts.get(after.checked_sub(1)?)?;
        let name = self.text.get(*at as usize..)?.split('\n').next()?;
        // what the compiler split off or copied goes by the function's name
        name.split('.').next().filter(|name| !name.is_empty())
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
    fn hidden_addresses_give_no_names() {
        let names = KernelNames::parse("0000000000000000 T schedule\n".as_bytes());
        assert_eq!(names.of(0xffff_ffff_8100_0000), None);
    }
}
