//! Writes the bytes of vectors as a corpus, a file for each: what the tests know, the fuzzer starts from.
//!
//! usage: write VECTORS FOLDER

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [vectors, folder] = arguments.as_slice() else {
        panic!("usage: write VECTORS FOLDER");
    };
    let text = fs::read_to_string(vectors).expect("the vectors");
    fs::create_dir_all(folder).expect("the folder");
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for (number, line) in lines.enumerate() {
        let column = line.split(" | ").nth(1).expect("the bytes in the second column");
        fs::write(folder.join(format!("vector-{number:03}")), bytes(column)).expect("a seed");
    }
}

/// Hexadecimal digits in pairs, text in quotes, `*N` behind it to repeat it.
fn bytes(column: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut text = "";
    for (index, part) in column.split('"').enumerate() {
        if index % 2 == 1 {
            text = part;
            bytes.extend(text.as_bytes());
            continue;
        }
        let (times, digits) = match part.strip_prefix('*') {
            Some(rest) => rest.split_once(' ').unwrap_or((rest, "")),
            None => ("1", part),
        };
        for _ in 1..times.parse::<usize>().expect("repetitions") {
            bytes.extend(text.as_bytes());
        }
        let digits: Vec<u8> = digits
            .bytes()
            .filter(|byte| !byte.is_ascii_whitespace())
            .collect();
        for pair in digits.chunks(2) {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            bytes.push(u8::from_str_radix(pair, 16).expect("a byte"));
        }
    }
    bytes
}
