//! Pickles of plain data, read without running anything: numbers, texts, lists, tuples and
//! dictionaries, as PyTorch's flight recorder writes its dumps.
//!
//! The opcodes are those of Python's `pickletools` (protocols 0 to 5). A pickle may also name
//! functions and have them called when it is loaded: such a one is refused, except for the builders
//! of typed lists that PyTorch's own pickler names (`torch.jit._pickle.build_intlist` and its
//! like), which stand for the list. Memory is bounded by the pickle's length, and at most by a
//! number of values: those that are shared in it are copied only as long as the result stays within
//! that.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};

/// Values nested deeper are refused.
const DEEPEST: usize = 64;
/// Most values in the result: this many for each byte of the pickle, and a fixed number more.
const VALUES_A_BYTE: usize = 4;
const VALUES: usize = 1 << 16;
/// Most values that a pickle makes, names that it gives to them, and values in the result: an empty
/// list takes one byte there and some 50 here. A dump of 20,000 calls with deep stacks has three
/// million.
const MOST_VALUES: usize = 1 << 23;

/// Why a pickle cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PickleError {
    /// It ends too early.
    #[error("the pickle is cut off at byte {0}")]
    Short(usize),
    /// It would run code when loaded.
    #[error("the pickle would run code when loaded ({0}): only plain data is read")]
    Code(String),
    /// An opcode that plain data has no use for.
    #[error("opcode {code:#04x} at byte {at} of the pickle is none of plain data")]
    Opcode {
        /// The opcode.
        code: u8,
        /// Where.
        at: usize,
    },
    /// Its parts do not fit each other.
    #[error("the pickle is damaged at byte {0}")]
    Damaged(usize),
    /// It has more values than any dump.
    #[error("the pickle has more than {MOST_VALUES} values: no dump of a flight recorder has as many")]
    TooMany,
    /// It nests too deep, contains itself, or unfolds to too much.
    #[error("the pickle nests deeper than {DEEPEST}, contains itself, or is many times larger when unfolded")]
    Unfolds,
}

/// A value under construction. It refers to others by their indices.
#[derive(Debug)]
enum Node {
    Mark,
    /// A function that makes a typed list of a list.
    ListBuilder,
    Plain(Value),
    List(Vec<usize>),
    Dict(Vec<(usize, usize)>),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<usize>,
    memo: HashMap<u64, usize>,
}

/// Whether bytes begin like a pickle of protocol 2 to 5.
pub(super) fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=5, ..])
}

/// The data of a pickle as JSON; tuples and sets are lists, bytes are text, keys of dictionaries
/// their text.
///
/// # Errors
/// [`PickleError`].
pub(super) fn read(bytes: &[u8]) -> Result<Value, PickleError> {
    let mut reader = Reader { bytes, at: 0, nodes: Vec::new(), stack: Vec::new(), memo: HashMap::new() };
    let root = reader.run()?;
    let mut left = bytes.len().saturating_mul(VALUES_A_BYTE).saturating_add(VALUES).min(MOST_VALUES);
    reader.unfold(root, 0, &mut left)
}

impl Reader<'_> {
    fn run(&mut self) -> Result<usize, PickleError> {
        loop {
            if self.nodes.len().max(self.stack.len()).max(self.memo.len()) > MOST_VALUES {
                return Err(PickleError::TooMany);
            }
            let at = self.at;
            let code = self.take(1)?[0];
            match code {
                b'.' => return self.pop(),
                // Protocol and frame: no data.
                0x80 => drop(self.take(1)?),
                0x95 => drop(self.take(8)?),
                b'(' => self.push(Node::Mark),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.since_mark()?),
                b'2' => {
                    let top = *self.stack.last().ok_or(PickleError::Damaged(at))?;
                    self.stack.push(top);
                }
                b'N' => self.plain(Value::Null),
                0x88 => self.plain(true.into()),
                0x89 => self.plain(false.into()),
                b'I' | b'L' => {
                    let line = self.line()?;
                    let value = match (code, line.as_str()) {
                        (b'I', "00") => Some(Value::Bool(false)),
                        (b'I', "01") => Some(Value::Bool(true)),
                        (_, digits) => integer_text(digits.trim_end_matches('L')),
                    };
                    self.plain(value.ok_or(PickleError::Damaged(at))?);
                }
                b'J' => {
                    let number = i32::from_le_bytes(self.array()?);
                    self.plain(number.into());
                }
                b'K' => {
                    let number = self.take(1)?[0];
                    self.plain(number.into());
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.array()?);
                    self.plain(number.into());
                }
                0x8a => {
                    let length = self.take(1)?[0].into();
                    self.long(length)?;
                }
                0x8b => {
                    let length = self.length(4)?;
                    self.long(length)?;
                }
                b'F' => {
                    let number: f64 = self.line()?.parse().map_err(|_| PickleError::Damaged(at))?;
                    self.real(number);
                }
                b'G' => {
                    let number = f64::from_be_bytes(self.array()?);
                    self.real(number);
                }
                b'S' => {
                    let line = self.line()?;
                    let quoted = line.trim_matches(['\'', '"']).to_owned();
                    self.plain(quoted.into());
                }
                b'V' => {
                    let line = self.line()?;
                    self.plain(line.into());
                }
                b'U' | b'C' | 0x8c => self.text(1)?,
                b'T' | b'X' | b'B' => self.text(4)?,
                0x8d | 0x8e => self.text(8)?,
                b']' | b')' | 0x8f => self.push(Node::List(Vec::new())),
                b'}' => self.push(Node::Dict(Vec::new())),
                b'l' | b't' | 0x91 => {
                    let items = self.since_mark()?;
                    self.push(Node::List(items));
                }
                b'd' => {
                    let items = self.since_mark()?;
                    let pairs = pairs(&items, at)?;
                    self.push(Node::Dict(pairs));
                }
                0x85..=0x87 => {
                    let from = self.stack.len().checked_sub(usize::from(code - 0x84));
                    let items = self.stack.split_off(from.ok_or(PickleError::Damaged(at))?);
                    self.push(Node::List(items));
                }
                b'a' => {
                    let item = self.pop()?;
                    self.extend(vec![item], at)?;
                }
                b'e' | 0x90 => {
                    let items = self.since_mark()?;
                    self.extend(items, at)?;
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.insert(&[key, value], at)?;
                }
                b'u' => {
                    let items = self.since_mark()?;
                    self.insert(&items, at)?;
                }
                b'p' | b'g' => {
                    let place = self.line()?.parse().map_err(|_| PickleError::Damaged(at))?;
                    self.memo(code == b'p', place, at)?;
                }
                b'q' | b'h' => {
                    let place = self.take(1)?[0].into();
                    self.memo(code == b'q', place, at)?;
                }
                b'r' | b'j' => {
                    let place = u32::from_le_bytes(self.array()?).into();
                    self.memo(code == b'r', place, at)?;
                }
                0x94 => self.memo(true, self.memo.len() as u64, at)?,
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.global(&module, &name)?;
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let text = |at: usize| match &self.nodes[at] {
                        Node::Plain(Value::String(text)) => text.clone(),
                        _ => String::new(),
                    };
                    let (module, name) = (text(module), text(name));
                    self.global(&module, &name)?;
                }
                // Only a builder of a list gets here, so the result is its argument.
                b'R' => {
                    let (given, function) = (self.pop()?, self.pop()?);
                    match (&self.nodes[function], &self.nodes[given]) {
                        (Node::ListBuilder, Node::List(given)) if given.len() == 1 => self.stack.push(given[0]),
                        _ => return Err(PickleError::Damaged(at)),
                    }
                }
                b'b' | b'i' | b'o' | b'P' | b'Q' | 0x81 | 0x82..=0x84 | 0x92 => {
                    return Err(PickleError::Code(format!("opcode {code:#04x} at byte {at}")));
                }
                _ => return Err(PickleError::Opcode { code, at }),
            }
        }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], PickleError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(PickleError::Short(self.bytes.len()))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn length(&mut self, bytes: usize) -> Result<usize, PickleError> {
        let mut all = [0; 8];
        all[..bytes].copy_from_slice(self.take(bytes)?);
        usize::try_from(u64::from_le_bytes(all)).map_err(|_| PickleError::Short(self.bytes.len()))
    }

    /// Up to the end of a line, without it.
    fn line(&mut self) -> Result<String, PickleError> {
        let length = self.bytes[self.at..].iter().position(|byte| *byte == b'\n');
        let length = length.ok_or(PickleError::Short(self.bytes.len()))?;
        let line = String::from_utf8_lossy(self.take(length + 1)?).trim_end().to_owned();
        Ok(line)
    }

    fn text(&mut self, length_bytes: usize) -> Result<(), PickleError> {
        let length = self.length(length_bytes)?;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.plain(text.into());
        Ok(())
    }

    /// A number of any length, two's complement; null beyond 128 bits, which no such dump contains.
    fn long(&mut self, length: usize) -> Result<(), PickleError> {
        let bytes = self.take(length)?;
        let value = (length <= 16).then(|| {
            let mut all = [if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 }; 16];
            all[..length].copy_from_slice(bytes);
            integer(i128::from_le_bytes(all))
        });
        self.plain(value.unwrap_or_default());
        Ok(())
    }

    fn real(&mut self, number: f64) {
        self.plain(Number::from_f64(number).map_or(Value::Null, Value::Number));
    }

    fn plain(&mut self, value: Value) {
        self.push(Node::Plain(value));
    }

    fn push(&mut self, node: Node) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    fn pop(&mut self) -> Result<usize, PickleError> {
        self.stack.pop().ok_or(PickleError::Damaged(self.at))
    }

    /// Removes the values pushed since the last mark, and the mark.
    fn since_mark(&mut self) -> Result<Vec<usize>, PickleError> {
        let mark = self.stack.iter().rposition(|at| matches!(self.nodes[*at], Node::Mark));
        let mark = mark.ok_or(PickleError::Damaged(self.at))?;
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(items)
    }

    fn extend(&mut self, items: Vec<usize>, at: usize) -> Result<(), PickleError> {
        let list = *self.stack.last().ok_or(PickleError::Damaged(at))?;
        let Node::List(list) = &mut self.nodes[list] else { return Err(PickleError::Damaged(at)) };
        list.extend(items);
        Ok(())
    }

    fn insert(&mut self, items: &[usize], at: usize) -> Result<(), PickleError> {
        let dict = *self.stack.last().ok_or(PickleError::Damaged(at))?;
        let Node::Dict(dict) = &mut self.nodes[dict] else { return Err(PickleError::Damaged(at)) };
        dict.extend(pairs(items, at)?);
        Ok(())
    }

    fn memo(&mut self, put: bool, place: u64, at: usize) -> Result<(), PickleError> {
        if put {
            let top = *self.stack.last().ok_or(PickleError::Damaged(at))?;
            self.memo.insert(place, top);
        } else {
            self.stack.push(*self.memo.get(&place).ok_or(PickleError::Damaged(at))?);
        }
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), PickleError> {
        if module != "torch.jit._pickle" || !name.starts_with("build_") || !name.ends_with("list") {
            return Err(PickleError::Code(format!("{module}.{name}")));
        }
        self.push(Node::ListBuilder);
        Ok(())
    }

    /// A value with all values in it.
    fn unfold(&self, at: usize, depth: usize, left: &mut usize) -> Result<Value, PickleError> {
        *left = left.checked_sub(1).filter(|_| depth <= DEEPEST).ok_or(PickleError::Unfolds)?;
        Ok(match &self.nodes[at] {
            Node::Mark | Node::ListBuilder => return Err(PickleError::Damaged(self.at)),
            Node::Plain(value) => {
                // A long text counts by its length.
                let size = value.as_str().map_or(0, str::len) / 8;
                *left = left.checked_sub(size).ok_or(PickleError::Unfolds)?;
                value.clone()
            }
            Node::List(items) => {
                Value::Array(items.iter().map(|item| self.unfold(*item, depth + 1, left)).collect::<Result<_, _>>()?)
            }
            Node::Dict(pairs) => {
                let mut map = Map::new();
                for (key, value) in pairs {
                    let key = match self.unfold(*key, depth + 1, left)? {
                        Value::String(key) => key,
                        other => other.to_string(),
                    };
                    map.insert(key, self.unfold(*value, depth + 1, left)?);
                }
                Value::Object(map)
            }
        })
    }
}

fn pairs(items: &[usize], at: usize) -> Result<Vec<(usize, usize)>, PickleError> {
    if !items.len().is_multiple_of(2) {
        return Err(PickleError::Damaged(at));
    }
    Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

fn integer(number: i128) -> Value {
    let small = i64::try_from(number).map(Value::from).or_else(|_| u64::try_from(number).map(Value::from));
    small.unwrap_or_else(|_| Number::from_f64(number as f64).map_or(Value::Null, Value::Number))
}

fn integer_text(digits: &str) -> Option<Value> {
    digits.parse().ok().map(integer)
}

/// Protocol 2, for tests: the pickle with the same contents as a JSON value.
#[cfg(test)]
pub(super) fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(b'N'),
        Value::Bool(yes) => out.push(if *yes { 0x88 } else { 0x89 }),
        Value::Number(number) => match number.as_i64() {
            Some(number) => {
                out.extend([0x8a, 8]);
                out.extend(number.to_le_bytes());
            }
            None => {
                out.push(b'G');
                out.extend(number.as_f64().unwrap_or_default().to_be_bytes());
            }
        },
        Value::String(text) => {
            out.push(b'X');
            out.extend(u32::try_from(text.len()).unwrap_or_default().to_le_bytes());
            out.extend(text.as_bytes());
        }
        Value::Array(items) => {
            out.extend(b"](");
            items.iter().for_each(|item| write(item, out));
            out.push(b'e');
        }
        Value::Object(map) => {
            out.extend(b"}(");
            for (key, value) in map {
                write(&Value::String(key.clone()), out);
                write(value, out);
            }
            out.push(b'u');
        }
    }
}

#[cfg(test)]
mod tests;
