//! Arrays in the forms in which clients send them: binary (`array_send`,
//! <https://github.com/postgres/postgres/blob/master/src/backend/utils/adt/arrayfuncs.c>) and text
//! (<https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO>). Of one dimension; none other
//! stands where a list can.

/// The elements of an array in binary form; none is NULL.
pub(super) fn binary(bytes: &[u8]) -> Option<Vec<Option<Vec<u8>>>> {
    let mut rest = bytes;
    let word = |rest: &mut &[u8]| -> Option<i32> {
        let (first, after) = rest.split_first_chunk::<4>()?;
        *rest = after;
        Some(i32::from_be_bytes(*first))
    };
    let dimensions = word(&mut rest)?;
    let (_has_null, _kind) = (word(&mut rest)?, word(&mut rest)?);
    match dimensions {
        0 => return rest.is_empty().then(Vec::new),
        1 => {}
        _ => return None,
    }
    let (count, _lower) = (usize::try_from(word(&mut rest)?).ok()?, word(&mut rest)?);
    // (Each takes four bytes at least: a count that lies reserves nothing.)
    let mut elements = Vec::with_capacity(count.min(rest.len() / 4));
    for _ in 0..count {
        let length = word(&mut rest)?;
        let Ok(length) = usize::try_from(length) else {
            elements.push(None);
            continue;
        };
        let (element, after) = rest.split_at_checked(length)?;
        elements.push(Some(element.to_vec()));
        rest = after;
    }
    rest.is_empty().then_some(elements)
}

/// The elements of an array as text, such as `{1,"a b",NULL}`.
pub(super) fn text(text: &str) -> Option<Vec<Option<Vec<u8>>>> {
    let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut elements = Vec::new();
    if inside.trim().is_empty() {
        return Some(elements);
    }
    let mut letters = inside.chars().peekable();
    loop {
        while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
        let mut element = String::new();
        if letters.next_if_eq(&'"').is_some() {
            loop {
                match letters.next()? {
                    '"' => break,
                    '\\' => element.push(letters.next()?),
                    letter => element.push(letter),
                }
            }
            elements.push(Some(element.into_bytes()));
            while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
        } else {
            while let Some(letter) = letters.next_if(|letter| *letter != ',') {
                match letter {
                    '\\' => element.push(letters.next()?),
                    '{' | '}' | '"' => return None,
                    letter => element.push(letter),
                }
            }
            let plain = element.trim();
            if plain.is_empty() {
                return None;
            }
            elements.push((!plain.eq_ignore_ascii_case("null")).then(|| plain.as_bytes().to_vec()));
        }
        match letters.next() {
            None => return Some(elements),
            Some(',') => {}
            Some(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(of: &str) -> Option<Vec<Option<String>>> {
        let plain = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        text(of).map(|elements| elements.into_iter().map(|element| element.map(plain)).collect())
    }

    #[test]
    fn texts_have_elements_in_quotation_marks_or_without() {
        let some = |words: &[&str]| Some(words.iter().map(|word| Some((*word).to_owned())).collect::<Vec<_>>());
        assert_eq!(read("{1, 2,3}"), some(&["1", "2", "3"]));
        assert_eq!(read(r#"{"a,b","\"q\"",c\,d,"NULL"}"#), some(&["a,b", "\"q\"", "c,d", "NULL"]));
        assert_eq!(read("{NULL,x}"), Some(vec![None, Some("x".to_owned())]));
        assert_eq!((read("{}"), read("{ }")), (some(&[]), some(&[])));
        for wrong in ["", "{", "1,2", "{1,}", "{,1}", "{{1},{2}}", "{\"a}", "{\"a\"b}", "{a\\"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn binary_arrays_are_read_and_broken_ones_refused() {
        let words = |words: &[i32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        let two = words(&[1, 1, 23, 2, 1, 4, 7, -1]);
        assert_eq!(binary(&two), Some(vec![Some(vec![0, 0, 0, 7]), None]));
        assert_eq!(binary(&words(&[0, 0, 23])), Some(vec![]));
        for cut in 0..two.len() {
            assert_eq!(binary(&two[..cut]), None, "{cut}");
        }
        assert_eq!(binary(&words(&[1, 0, 23, i32::MAX, 1])), None);
        assert_eq!(binary(&words(&[2, 0, 23, 1, 1, 1, 1, 4, 7])), None, "two dimensions");
    }
}
