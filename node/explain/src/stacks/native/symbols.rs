//! Names of native functions from the symbol tables of ELF files, which the crate `files` reads.

use std::collections::BTreeMap;
use std::ops::Range;

use files::{Answer, Files, Question};

use super::super::modules::{Mapping, ask};
use super::super::types::shorten;

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its addresses: in its file, or in memory.
    pub(crate) range: Range<u64>,
    /// Demangled.
    pub(crate) name: String,
}

/// How an address of a file is shown for which no function is known.
pub(crate) fn unnamed(in_file: u64) -> String {
    format!("+{in_file:#x}")
}

/// The functions of a process that were found, by their start in memory: a program that computes is
/// at another address of the same few in each sample.
#[derive(Debug, Default)]
pub(crate) struct KnownFunctions(BTreeMap<u64, Function>);

impl KnownFunctions {
    /// The name of the function at an address in memory.
    pub(crate) fn name(&self, address: u64) -> Option<&str> {
        let (_, function) = self.0.range(..=address).next_back()?;
        function.range.contains(&address).then_some(&function.name)
    }

    /// Keeps what was found for `address`, which is `in_file` in its file: a function of the file,
    /// or none, of which the address itself is kept.
    pub(crate) fn keep(&mut self, address: u64, in_file: u64, found: Option<Function>, name_bytes: usize) {
        let bias = address.wrapping_sub(in_file);
        let function = match found {
            Some(Function { range, name }) => Function {
                range: range.start.wrapping_add(bias)..range.end.wrapping_add(bias),
                name: shorten(&name, name_bytes, false),
            },
            None => Function { range: address..address.saturating_add(1), name: unnamed(in_file) },
        };
        self.0.insert(function.range.start, function.clone());
        // Another function may begin within this one.
        if self.name(address).is_none() {
            self.0.insert(address, function);
        }
    }

    /// Forgets all where they are too many: names are another user's.
    pub(crate) fn keep_small(&mut self) {
        const MOST: usize = 16_384;
        if self.0.len() > MOST {
            self.0.clear();
        }
    }
}

/// The functions that contain these addresses (as in the file, ascending), in their order. `None`
/// where the file cannot be read now.
pub(crate) fn functions(
    files: &Files,
    pid: u32,
    mapping: &Mapping,
    addresses: &[u64],
) -> Option<Vec<Option<Function>>> {
    let question = Question::Functions { addresses: addresses.to_vec() };
    let found = match ask(files, pid, mapping, question).as_deref() {
        Ok(Answer::Functions(found)) if found.len() == addresses.len() => found.clone(),
        Err(refusal) if !refusal.is_final() => return None,
        _ => vec![None; addresses.len()],
    };
    let function = |files::Function { start, end, name }| Function { range: start..end, name };
    Some(found.into_iter().map(|found| found.map(function)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_name_of_a_function_of_its_own_file() {
        let mut known = KnownFunctions::default();
        let function = |range, name: &str| Some(Function { range, name: name.to_owned() });
        known.keep(0x7000_1100, 0x1100, function(0x1000..0x2000, "outer"), 80);
        // Another file, where 0x1500 is no address of that function.
        assert_eq!(known.name(0x7100_1500), None);
        known.keep(0x7100_1500, 0x1500, None, 80);
        assert_eq!(known.name(0x7100_1500), Some("+0x1500"));
        // A function within another one: the address behind it has the outer one's name.
        known.keep(0x7000_1410, 0x1410, function(0x1400..0x1420, "inner"), 80);
        known.keep(0x7000_1500, 0x1500, function(0x1000..0x2000, "outer"), 80);
        let names = [0x7000_1200, 0x7000_1410, 0x7000_1500].map(|address| known.name(address));
        assert_eq!(names, [Some("outer"), Some("inner"), Some("outer")]);
    }
}
