//! ELF files of other users, asked everything that is asked of them. The first byte of an input
//! picks the question, the rest is the file.

use files::Question;

fn questions() -> Vec<Question> {
    let text = str::to_owned;
    vec![
        Question::Exports { prefixes: vec![text("nccl"), text("MPI_")] },
        Question::DefaultVersion { symbol: text("ncclAllReduce") },
        Question::NcclBuild,
        Question::NcclVersion,
        Question::CommLayout,
        Question::Function { name: text("a::f") },
        Question::Points { provider: text("prov"), name: text("point") },
        Question::Place { file_offset: 0x210 },
        Question::Interpreter { deep: true },
        Question::Functions { addresses: vec![0x200, 0x210, 0x220] },
        Question::Matching { name: text("a::f") },
    ]
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let file = file();
    (0..questions().len()).map(|n| [&[u8::try_from(n).unwrap_or(0)][..], &file].concat()).collect()
}

pub(super) fn feed(input: &[u8]) {
    let Some((first, file)) = input.split_first() else { return };
    let questions = questions();
    let _ = files::reads_in_this_process(&questions[usize::from(*first) % questions.len()], file);
}

const NAMES: &[u8] = b"\0ncclAllReduce\0_ZN1a1fEi\0_PyRuntime\0";
const SECTION_NAMES: &[u8] = b"\0.text\0.dynsym\0.dynstr\0.symtab\0.note.stapsdt\0.rodata\0.shstrtab\0";
const TEXT: &[u8] = b"\x55\x31\xc0\x5d\xc3";
const RODATA: &[u8] = b"NCCL version 2.27.5+cuda12.9\0";

/// A small library with symbols, a point and a version text, all in one segment.
fn file() -> Vec<u8> {
    let mut symbols = vec![0; 24];
    for (name, info) in [(1u32, 0x12u8), (15, 0x12), (25, 0x11)] {
        symbols.extend(name.to_le_bytes());
        symbols.extend([info, 0, 1, 0]);
        symbols.extend([0x200u64, 5].map(u64::to_le_bytes).concat());
    }
    let mut point: Vec<u8> = [8u32, 40, 3].map(u32::to_le_bytes).concat();
    point.extend(b"stapsdt\0");
    point.extend([0x200u64, 0, 0].map(u64::to_le_bytes).concat());
    point.extend(b"prov\0point\0\0\0\0\0\0");
    let parts: [(u32, u32, &[u8], u32); 7] = [
        (1, 1, TEXT, 0),
        (7, 11, &symbols, 3),
        (15, 3, NAMES, 0),
        (23, 2, &symbols, 3),
        (31, 7, &point, 0),
        (45, 1, RODATA, 0),
        (53, 3, SECTION_NAMES, 0),
    ];
    let (mut body, mut headers) = (vec![], vec![0u8; 64]);
    for (name, kind, bytes, link) in parts {
        let at = 0x200 + body.len() as u64;
        headers.extend([name, kind].map(u32::to_le_bytes).concat());
        headers.extend([2, at, at, bytes.len() as u64].map(u64::to_le_bytes).concat());
        headers.extend([link, 1].map(u32::to_le_bytes).concat());
        headers.extend([8u64, if link > 0 { 24 } else { 0 }].map(u64::to_le_bytes).concat());
        body.extend(bytes);
        body.resize(body.len().next_multiple_of(8), 0);
    }
    let (end, halves) = (0x200 + body.len() as u64, |values: [u16; 6]| values.map(u16::to_le_bytes).concat());
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([3u16, 62].map(u16::to_le_bytes).concat());
    file.extend(1u32.to_le_bytes());
    file.extend([0u64, 64, end].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    file.extend(halves([64, 56, 1, 64, 8, 7]));
    file.extend([1u32, 5].map(u32::to_le_bytes).concat());
    file.extend([0, 0, 0, end, end, 0x1000].map(u64::to_le_bytes).concat());
    file.resize(0x200, 0);
    file.extend(body);
    file.extend(headers);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_to_start_from_answers_most_questions() {
        let file = file();
        let answered = questions().iter().filter(|question| files::reads_in_this_process(question, &file)).count();
        assert_eq!(answered, questions().len() - 1, "all but the layout, for which it has no debug information");
    }
}
