//! A scanner over the text of one JSON value.
//!
//! The scanner accepts a subset of JSON (RFC 8259), and says `Unsure` of everything else. So an
//! accepted value is certainly valid, and an unsure one may be.

/// The value may or may not fit: the caller decides by its own rules.
#[derive(Debug)]
pub struct Unsure;

pub type Sure<T> = Result<T, Unsure>;

/// Deepest nesting of a value that is skipped.
const DEEPEST: usize = 64;

/// Most digits of an integer, so that it surely fits 64 bits.
const MOST_DIGITS: usize = 18;

pub struct Scanner<'a> {
    pub text: &'a [u8],
    pub at: usize,
}

/// A string's content, from `begin` to before `end` in the text.
#[derive(Clone, Copy)]
pub struct Quoted {
    pub begin: usize,
    pub end: usize,
    pub has_escapes: bool,
}

impl Scanner<'_> {
    /// Return the next byte.
    pub fn peek(&self) -> Sure<u8> {
        self.text.get(self.at).copied().ok_or(Unsure)
    }

    pub fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    /// Skip space, and return the byte after it, which is passed.
    pub fn next_mark(&mut self) -> Sure<u8> {
        self.skip_space();
        let mark = self.peek()?;
        self.at += 1;
        Ok(mark)
    }

    /// Pass this byte, which may follow space.
    pub fn expect(&mut self, byte: u8) -> Sure<()> {
        if self.next_mark()? == byte { Ok(()) } else { Err(Unsure) }
    }

    /// Pass a literal: `true`, `false` or `null`.
    pub fn literal(&mut self, word: &[u8]) -> Sure<()> {
        if !self.text[self.at..].starts_with(word) {
            return Err(Unsure);
        }
        self.at += word.len();
        Ok(())
    }

    /// Pass a string, whose escapes are not checked.
    pub fn string(&mut self) -> Sure<Quoted> {
        self.expect(b'"')?;
        let begin = self.at;
        let mut has_escapes = false;
        loop {
            self.at += plain_length(self.text.get(self.at..).ok_or(Unsure)?);
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Ok(Quoted { begin, end: self.at - 1, has_escapes });
                }
                b'\\' => {
                    has_escapes = true;
                    self.at += 2;
                }
                _ => return Err(Unsure), // a control character
            }
        }
    }

    /// Pass a whole number of at most 18 digits, written without a fraction or an exponent.
    pub fn integer(&mut self) -> Sure<i64> {
        let (begin, is_whole) = self.number()?;
        let number = &self.text[begin..self.at];
        if !is_whole || number.len() > MOST_DIGITS {
            return Err(Unsure);
        }
        let (is_negative, digits) = match number {
            [b'-', digits @ ..] => (true, digits),
            digits => (false, digits),
        };
        let number = digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
        Ok(if is_negative { -number } else { number })
    }

    /// Pass a number; return the nearest double.
    pub fn float(&mut self) -> Sure<f64> {
        let (begin, _) = self.number()?;
        let text = std::str::from_utf8(&self.text[begin..self.at]).map_err(|_| Unsure)?;
        let number: f64 = text.parse().map_err(|_| Unsure)?;
        if number.is_finite() { Ok(number) } else { Err(Unsure) }
    }

    /// Pass a number; return its begin, and whether it has neither a fraction nor an exponent.
    fn number(&mut self) -> Sure<(usize, bool)> {
        let begin = self.at;
        if self.peek()? == b'-' {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits()?,
            _ => return Err(Unsure),
        }
        let mut is_whole = true;
        if self.text.get(self.at) == Some(&b'.') {
            is_whole = false;
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.text.get(self.at) {
            is_whole = false;
            self.at += 1;
            if let Some(b'+' | b'-') = self.text.get(self.at) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok((begin, is_whole))
    }

    fn digits(&mut self) -> Sure<()> {
        let begin = self.at;
        while let Some(b'0'..=b'9') = self.text.get(self.at) {
            self.at += 1;
        }
        if self.at > begin { Ok(()) } else { Err(Unsure) }
    }

    /// Pass any value, and check that it is valid.
    pub fn skip(&mut self) -> Sure<()> {
        self.skip_nested(0)
    }

    fn skip_nested(&mut self, depth: usize) -> Sure<()> {
        self.skip_space();
        match self.peek()? {
            b'"' => self.skip_string(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            b'{' | b'[' if depth < DEEPEST => self.skip_members(depth),
            // Of a number beyond the doubles, such as 1e999, decoders differ.
            b'-' | b'0'..=b'9' => self.float().map(|_| ()),
            _ => Err(Unsure),
        }
    }

    fn skip_members(&mut self, depth: usize) -> Sure<()> {
        let is_object = self.next_mark()? == b'{';
        let close = if is_object { b'}' } else { b']' };
        self.skip_space();
        if self.peek()? == close {
            self.at += 1;
            return Ok(());
        }
        loop {
            if is_object {
                self.skip_string()?;
                self.expect(b':')?;
            }
            self.skip_nested(depth + 1)?;
            match self.next_mark()? {
                b',' => {}
                mark if mark == close => return Ok(()),
                _ => return Err(Unsure),
            }
        }
    }

    fn skip_string(&mut self) -> Sure<()> {
        let quoted = self.string()?;
        if quoted.has_escapes {
            unescape(&self.text[quoted.begin..quoted.end], &mut Vec::new())?;
        }
        Ok(())
    }
}

/// Return the number of bytes before the first quote, backslash or control character.
///
/// Eight bytes are compared at a time. A byte of `zeros(word ^ pattern)` has its high bit set where
/// the word has the pattern's byte; bytes after the first such byte may have it set wrongly.
fn plain_length(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES * 128;
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
    let mut at = 0;
    while let Some(bytes) = text.get(at..at + 8) {
        let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let ends = zeros(word ^ (ONES * u64::from(b'"')))
            | zeros(word ^ (ONES * u64::from(b'\\')))
            | (word.wrapping_sub(ONES * 0x20) & !word);
        if ends & HIGHS != 0 {
            return at + ((ends & HIGHS).trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
    at + text[at..].iter().position(is_end).unwrap_or(text.len() - at)
}

/// Append the content of a string, without its escapes.
pub fn unescape(text: &[u8], to: &mut Vec<u8>) -> Sure<()> {
    let mut at = 0;
    while at < text.len() {
        let run = text[at..].iter().position(|&byte| byte == b'\\').unwrap_or(text.len() - at);
        to.extend_from_slice(&text[at..at + run]);
        at += run;
        if at == text.len() {
            break;
        }
        let escape = *text.get(at + 1).ok_or(Unsure)?;
        at += 2;
        match escape {
            b'"' | b'\\' | b'/' => to.push(escape),
            b'b' => to.push(8),
            b'f' => to.push(12),
            b'n' => to.push(b'\n'),
            b'r' => to.push(b'\r'),
            b't' => to.push(b'\t'),
            b'u' => {
                let (character, length) = unicode(&text[at..])?;
                to.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                at += length;
            }
            _ => return Err(Unsure),
        }
    }
    Ok(())
}

/// Return the character after `\u`, which may be a surrogate pair, and the length of its digits.
fn unicode(text: &[u8]) -> Sure<(char, usize)> {
    let first = hexadecimal(text, 0)?;
    if !(0xd800..0xdc00).contains(&first) {
        return Ok((char::from_u32(first).ok_or(Unsure)?, 4));
    }
    if text.get(4..6) != Some(b"\\u") {
        return Err(Unsure);
    }
    let second = hexadecimal(text, 6)?;
    if !(0xdc00..0xe000).contains(&second) {
        return Err(Unsure);
    }
    let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    Ok((char::from_u32(code).ok_or(Unsure)?, 10))
}

fn hexadecimal(text: &[u8], at: usize) -> Sure<u32> {
    let digits = text.get(at..at + 4).ok_or(Unsure)?;
    digits.iter().try_fold(0, |number, &digit| {
        Ok(number * 16 + char::from(digit).to_digit(16).ok_or(Unsure)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(text: &str) -> Option<usize> {
        let mut scanner = Scanner { text: text.as_bytes(), at: 0 };
        scanner.skip().ok().map(|()| scanner.at)
    }

    #[test]
    fn valid_values_are_passed() {
        for text in ["1", "-0.5e+3", "\"a\\u00e9\\ud83d\\ude00\"", "[1, {\"a\" : [ ]}]", "{}", "null"] {
            assert_eq!(skipped(text), Some(text.len()), "{text}");
        }
    }

    #[test]
    fn invalid_values_are_not_passed() {
        for text in [
            "", "01x", "1.", ".5", "-", "1e", "1e999", "[1,]", "{\"a\":1,}", "{1:2}", "\"\\u12\"",
            "\"\\ud800\"", "\"a", "\"\\\"", "\"\t\"", "nul", "[1 2]", "{\"a\" 1}",
        ] {
            assert_ne!(skipped(text), Some(text.len()), "{text}");
        }
        let deep = "[".repeat(DEEPEST + 1) + &"]".repeat(DEEPEST + 1);
        assert_eq!(skipped(&deep), None);
    }

    #[test]
    fn the_end_of_a_plain_run_is_found_at_every_place() {
        for length in 0..40 {
            for end in [b'"', b'\\', 0, 0x1f] {
                let mut text = vec![b'x'; length];
                assert_eq!(plain_length(&text), length);
                text.push(end);
                text.extend_from_slice(b"\x7f\xffxxxxxxxx");
                assert_eq!(plain_length(&text), length);
            }
        }
        assert_eq!(plain_length(b"\x20\x21\x7f\x80\xff\xc3\xa9z"), 8);
    }
}
