//! Rust text as the rules of `tidy.rs` read it: without comments and literals, in words, by
//! references.

use std::collections::BTreeSet;

/// Names that follow `prefix`, also those in the braces after it.
pub(crate) fn references(code: &str, prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for at in places_of(code, prefix.trim_end_matches(':')) {
        let Some(rest) = code[at..].strip_prefix(prefix) else {
            continue;
        };
        match rest.strip_prefix('{') {
            Some(group) => found.extend(names_in_group(group)),
            None => found.extend(first_name(rest)),
        }
    }
    found
}

/// The first name of every item of a group whose opening brace is already gone.
fn names_in_group(group: &str) -> Vec<String> {
    let (mut names, mut depth, mut item) = (Vec::new(), 0, String::new());
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.extend(first_name(&std::mem::take(&mut item))),
            _ => {}
        }
        item.push(character);
    }
    names.extend(first_name(item.trim_start_matches(',')));
    names
}

fn first_name(text: &str) -> Option<String> {
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
    let name: String = text
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (!name.is_empty()).then_some(name)
}

/// Byte offsets of a whole word.
pub(crate) fn places_of(code: &str, word: &str) -> Vec<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(|at| !code[..*at].ends_with(is_part))
        .filter(|at| !code[at + word.len()..].starts_with(is_part))
        .collect()
}

/// Lower-case words: identifiers are cut at underscores and humps, and a plural counts as its
/// singular where that is one of the nouns.
pub(crate) fn words_of(text: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let mut word = String::new();
    let mut was_lower = false;
    for character in text.chars().chain([' ']) {
        let is_hump = character.is_uppercase() && was_lower;
        if !character.is_alphanumeric() || is_hump {
            if let Some(singular) = word.strip_suffix("ers") {
                words.insert(format!("{singular}er"));
            }
            words.insert(std::mem::take(&mut word));
        }
        if character.is_alphanumeric() {
            word.extend(character.to_lowercase());
        }
        was_lower = character.is_lowercase();
    }
    words
}

/// Rust text with comments, strings and character literals blanked; line breaks stay.
pub(crate) fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let length = blank_length(&text[at..], code.last().copied());
        let end = at + length.max(1);
        if length == 0 {
            let width = text[at..].chars().next().map_or(1, char::len_utf8);
            code.extend_from_slice(&bytes[at..at + width]);
            at += width;
            continue;
        }
        code.extend(
            bytes[at..end]
                .iter()
                .map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }),
        );
        at = end;
    }
    String::from_utf8(code).expect("cut at the borders of characters")
}

/// Bytes of the comment or literal that the text begins with, 0 if with none.
fn blank_length(text: &str, previous: Option<u8>) -> usize {
    let until = |start: usize, end: &str| {
        let found = text.get(start..).and_then(|rest| rest.find(end));
        found.map_or(text.len(), |found| start + found + end.len())
    };
    let is_in_word = previous.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return until(2, "*/");
    }
    if text.starts_with('r') && !is_in_word {
        let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
        if text[1 + hashes..].starts_with('"') {
            return until(2 + hashes, &format!("\"{}", "#".repeat(hashes)));
        }
    }
    if text.starts_with('"') {
        return quoted_length(text, '"');
    }
    let mut after_quote = text.strip_prefix('\'').unwrap_or_default().chars();
    match (after_quote.next(), after_quote.next()) {
        (Some('\\'), _) => quoted_length(text, '\''),
        (Some(character), Some('\'')) => character.len_utf8() + 2,
        _ => 0,
    }
}

/// Bytes up to and with the closing quote, with escapes.
fn quoted_length(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[test]
fn code_is_told_from_comments_and_literals() {
    let text =
        "let a = 'x'; let b: &'a str = \"// \\\" é\"; // tail\nr#\"raw \" \"# + '\\'' /* c */ end";
    let code = code_of(text);
    let kept: Vec<&str> = code.split_whitespace().collect();
    assert_eq!(
        kept,
        [
            "let", "a", "=", ";", "let", "b:", "&'a", "str", "=", ";", "+", "end"
        ]
    );
    assert_eq!(code.matches('\n').count(), 1);
}
