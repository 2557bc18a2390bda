//! Dates and times as RFC 3339 writes them.

use crate::scan::{Sure, Unsure};

const DAY_US: i64 = 86_400_000_000;
/// 0001-01-01T00:00:00Z (µs since the epoch).
const FIRST_US: i64 = -62_135_596_800_000_000;
/// 9999-12-31T23:59:59.999999Z (µs since the epoch).
const LAST_US: i64 = 253_402_300_799_999_999;

/// Parse a date such as `2026-01-31`; return days since the epoch.
pub fn date(text: &[u8]) -> Sure<i64> {
    if text.len() != 10 || text[4] != b'-' || text[7] != b'-' {
        return Err(Unsure);
    }
    let (year, month, day) = (digits(text, 0, 4)?, digits(text, 5, 2)?, digits(text, 8, 2)?);
    let is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let days_of_month = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return Err(Unsure),
    };
    if year < 1 || !(1..=days_of_month).contains(&day) {
        return Err(Unsure);
    }
    // A year that begins in March has its leap day at the end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Ok(era * 146_097 + day_of_era - 719_468)
}

/// Parse a time such as `2026-01-31T12:00:00.123+01:00`; return µs since the epoch.
///
/// A second has no fraction, or one of three or six digits. A time without a zone is in UTC.
pub fn time(text: &[u8]) -> Sure<i64> {
    if text.len() < 19 || (text[10], text[13], text[16]) != (b'T', b':', b':') {
        return Err(Unsure);
    }
    let days = date(&text[..10])?;
    let (hour, minute, second) = (digits(text, 11, 2)?, digits(text, 14, 2)?, digits(text, 17, 2)?);
    if hour > 23 || minute > 59 || second > 59 {
        return Err(Unsure);
    }
    let mut us = ((hour * 60 + minute) * 60 + second) * 1_000_000;
    let mut zone = &text[19..];
    if let [b'.', fraction @ ..] = zone {
        let count = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        us += match count {
            3 => digits(fraction, 0, 3)? * 1000,
            6 => digits(fraction, 0, 6)?,
            _ => return Err(Unsure),
        };
        zone = &fraction[count..];
    }
    let us = days * DAY_US + us - offset_us(zone)?;
    if (FIRST_US..=LAST_US).contains(&us) { Ok(us) } else { Err(Unsure) }
}

/// Parse a zone: nothing, `Z`, or an offset such as `-05:30` (µs).
fn offset_us(zone: &[u8]) -> Sure<i64> {
    match zone {
        [] | [b'Z'] => Ok(0),
        [sign @ (b'+' | b'-'), offset @ ..] if offset.len() == 5 && offset[2] == b':' => {
            let (hours, minutes) = (digits(offset, 0, 2)?, digits(offset, 3, 2)?);
            if hours > 23 || minutes > 59 {
                return Err(Unsure);
            }
            let minute_us = if *sign == b'-' { -60_000_000 } else { 60_000_000 };
            Ok((hours * 60 + minutes) * minute_us)
        }
        _ => Err(Unsure),
    }
}

/// Parse a number of exactly `count` digits.
fn digits(text: &[u8], at: usize, count: usize) -> Sure<i64> {
    let digits = text.get(at..at + count).ok_or(Unsure)?;
    digits.iter().try_fold(0, |number, digit| match digit {
        b'0'..=b'9' => Ok(number * 10 + i64::from(digit - b'0')),
        _ => Err(Unsure),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_count_from_the_epoch() {
        for (text, days) in [
            ("1970-01-01", 0),
            ("1969-12-31", -1),
            ("2000-03-01", 11_017),
            ("2024-02-29", 19_782),
            ("0001-01-01", -719_162),
            ("9999-12-31", 2_932_896),
        ] {
            assert_eq!(date(text.as_bytes()).ok(), Some(days), "{text}");
        }
        for text in ["2026-02-29", "0000-01-01", "2026-13-01", "2026-1-01", "2026-01-01T", "1900-02-29"] {
            assert!(date(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn zones_and_fractions_count() {
        for (text, us) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:01.5Z", -1),
            ("1970-01-01T00:00:01.500", 1_500_000),
            ("1970-01-01T01:00:00.000001+01:00", 1),
            ("1969-12-31T18:30:00-05:30", 0),
            ("0001-01-01T00:00:00+00:01", -1),
            ("1970-01-01T24:00:00Z", -1),
            ("1970-01-01T00:00Z", -1),
        ] {
            assert_eq!(time(text.as_bytes()).unwrap_or(-1), us, "{text}");
        }
    }
}
