"""Invented values: names, places, dates, sums, codes. Each language writes dates and days in its own way."""

SYLLABLES = (
    "ba be bo bra da de di do dra fa fe fi ga go gri ha he jo ka ke kla la le li lo lu ma me mi mo na ne ni no "
    "pa pe po pra ra re ri ro sa se so sta ta te ti to tri va ve vo wa we wi za zo"
).split()
FIRST = (
    "Adele Agnes Amara Anil Anton Aiko Beatriz Bruno Carmen Chidi Clara Dario Deepa Edith Elif Emil Esther Fatima Felix Fiona Goran Greta "
    "Hamid Hanna Hugo Ibrahim Ilse Imani Ingrid Ivan Jana Jorge Kofi Lars Leila Lucia Magnus Marta Mei Milos Mira Nadia Nils Noor Olga Omar "
    "Paul Pia Priya Rafael Rosa Samir Selma Sven Tariq Tessa Tomas Ulla Viktor Wanda Yara Yusuf Zoe Simon Alice Peter Helen Mark Susan"
).split()
LAST = (
    "Abara Almeida Bauer Becker Bergman Castro Chen Dimitrov Eriksen Farkas Fontaine Garcia Grant Haddad Hansen Ivanova Jansen Kaya Keller "
    "Kimura Kowalski Lefevre Lindqvist Marino Mensah Moreau Nakamura Novak Okafor Osei Patel Petrov Quinn Ramos Rossi Sato Schmid Silva "
    "Singh Tanaka Toure Ueda Varga Vogel Walker Weiss Yilmaz Zeman Holt Barnes Mercer Price Hale Lowe"
).split()
DAYS = {
    "en": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "de": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split(),
    "fr": "lundi mardi mercredi jeudi vendredi samedi dimanche".split(),
}
MONTHS = {
    "en": "January February March April May June July August September October November December".split(),
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split(),
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split(),
}
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
WORDS = "amber basil cedar delta ember flint grove heath iris jade kelp lunar maple night ocean pearl quartz river stone tulip".split()


def invented(rng, syllables=(2, 3)):
    """A word that means nothing."""
    word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(*syllables)))
    return word.capitalize() + rng.choice(["", "", "n", "r", "s", "l", "ck", "m"])


def person(rng, language):
    last = rng.choice(LAST) if rng.random() < 0.5 else invented(rng)
    first = rng.choice(FIRST) if rng.random() < 0.7 else invented(rng)
    return f"{first} {last}"


def place(rng, language):
    tail = rng.choice(["", "", "", "ford", "ham", "burg", "dale", "wick", "stad"])
    return invented(rng, (1, 2)) + tail if tail else invented(rng)


def date(rng, language):
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2018, 2026)
    name = MONTHS[language][month - 1]
    if rng.random() < 0.2:
        return f"{year}-{month:02}-{day:02}"
    if language == "en":
        return rng.choice([f"{day} {name}", f"{day} {name} {year}", f"{name} {day}, {year}", f"{name} {day}"])
    return rng.choice([f"{day}{'.' if language == 'de' else ''} {name}", f"{day}{'.' if language == 'de' else ''} {name} {year}"])


def number(rng, low, high):
    """Small and large ones alike often."""
    top = rng.choice([high, high, min(high, low + 60), min(high, low + 900)])
    value = rng.randint(low, top)
    return f"{value:,}" if value >= 10000 and rng.random() < 0.5 else str(value)


def money(rng, language):
    value = rng.choice([rng.randint(2, 95), rng.randint(100, 990), rng.randint(1000, 9900)])
    cents = f".{rng.randint(1, 99):02}" if rng.random() < 0.3 else ""
    if language != "en":
        return f"{value}{cents.replace('.', ',')} Euro" if language == "de" else f"{value}{cents.replace('.', ',')} euros"
    thousands = f"{value:,}" if rng.random() < 0.5 else str(value)
    return rng.choice(["€{}", "${}", "£{}", "{} crowns", "{} euros", "CHF {}"]).format(thousands + cents)


def code(rng, language):
    letters = "".join(rng.choice("ABCDEFGHKLMNPRSTVWXZ") for _ in range(rng.randint(1, 3)))
    digits = str(rng.randint(10, 9999))
    return rng.choice([f"{letters}-{digits}", f"{letters}{digits}", f"{digits}-{letters}", f"{letters}-{digits}-{rng.randint(1, 9)}"])


def phone(rng, language):
    parts = [f"0{rng.randint(11, 99)}", str(rng.randint(100, 999)), str(rng.randint(1000, 9999))]
    return rng.choice([" ", "-", " / "]).join(parts)


def file(rng, language):
    stem = f"{rng.choice(WORDS)}{rng.choice(['-', '_', ''])}{rng.choice(WORDS + [str(rng.randint(1, 99))])}"
    return stem + rng.choice([".pdf", ".xlsx", ".md", ".docx", ".zip", ".csv", ".toml", ".txt"])


def time(rng, language):
    hour, minute = rng.randint(5, 22), rng.choice([0, 5, 10, 15, 20, 30, 40, 45, 50, 55])
    if language == "en" and rng.random() < 0.4:
        return f"{(hour - 1) % 12 + 1}:{minute:02} {'am' if hour < 12 else 'pm'}"
    return f"{hour}:{minute:02}"


def password(rng, language):
    return rng.choice(["-", "", "."]).join([rng.choice(WORDS), rng.choice(WORDS), str(rng.randint(10, 999))])


KINDS = {
    "person": person,
    "place": place,
    "last": lambda rng, _: rng.choice(LAST) if rng.random() < 0.6 else invented(rng),
    "date": date,
    "weekday": lambda rng, language: rng.choice(DAYS[language]),
    "time": time,
    "year": lambda rng, _: str(rng.randint(1790, 2025)),
    "money": money,
    "code": code,
    "phone": phone,
    "file": file,
    "room": lambda rng, _: rng.choice([str(rng.randint(1, 499)), f"{rng.choice('ABCDEG')}{rng.randint(1, 49)}", f"{rng.choice('ABCDEG')}.{rng.randint(10, 99)}"]),
    "host": lambda rng, _: f"{rng.choice(WORDS)}-{rng.randint(1, 40):02}",
    "path": lambda rng, _: "/" + "/".join(rng.choice([["srv", "var", "mnt", "data", "opt"], WORDS, WORDS][at]) for at in range(3)),
    "version": lambda rng, _: f"{rng.randint(0, 14)}.{rng.randint(0, 30)}.{rng.randint(0, 19)}",
    "address": lambda rng, language: f"{rng.randint(1, 180)} {invented(rng)} {rng.choice(['Street', 'Road', 'Lane', 'Square'])}, {place(rng, language)}",
    "street": lambda rng, _: f"{invented(rng)} {rng.choice(['Street', 'Road', 'Lane', 'Alley'])}",
    "iban": lambda rng, _: f"{rng.choice(['DK', 'NL', 'AT', 'CH'])}{rng.randint(10, 99)} {rng.randint(1000, 9999)} {rng.randint(1000, 9999)}",
    "brand": lambda rng, _: invented(rng),
    "pin": lambda rng, _: f"{rng.randint(0, 9999):04}",
    "mail": lambda rng, _: f"{invented(rng).lower()}@{invented(rng).lower()}.example",
    "plate": lambda rng, _: f"{''.join(rng.choice('ABCDEFGHKLMNPR') for _ in range(2))} {rng.randint(100, 9999)}",
    "pass": password,
    "ordinal": lambda rng, _: rng.choice(ORDINALS),
    "drug": lambda rng, _: invented(rng, (2, 4)).lower() + rng.choice(["ol", "in", "mab", "pril"]),
    "ship": lambda rng, _: rng.choice(["Aurora", "Sea Lark", "Grey Gull", "Concord", "Morning Star", "Petrel"]) if rng.random() < 0.3 else invented(rng),
    "thing": lambda rng, _: rng.choice(WORDS),
}


def value(rng, language, kind):
    """A value of `kind`: a name of KINDS, `int LOW HIGH` or `pick A|B|C`."""
    name, _, rest = kind.partition(" ")
    if name == "int":
        return number(rng, *map(int, rest.split()))
    if name == "pick":
        return rng.choice(rest.split("|"))
    return KINDS[name](rng, language)
