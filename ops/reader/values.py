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


def comma(number, language):
    return number if language == "en" else number.replace(".", ",")


def day(rng, language):
    """A date with all that it may have: an answer has all of it, too."""
    weekday, at, month = rng.choice(DAYS[language]), rng.randint(1, 28), rng.choice(MONTHS[language])
    year = rng.randint(2019, 2027)
    if language == "en":
        forms = ["{w} {d} {m} {y}", "{w}, {m} {d}, {y}", "{w} {d} {m}", "{d} {m} {y}", "{m} {d}", "{w}, {d} {m}"]
    elif language == "de":
        forms = ["{w}, {d}. {m} {y}", "{w}, {d}. {m}", "{d}. {m} {y}", "{d}. {m}", "{d}.{n}.{y}"]
    else:
        forms = ["{w} {d} {m} {y}", "{w} {d} {m}", "{d} {m} {y}", "{d} {m}", "{d}/{n:02}/{y}"]
    return rng.choice(forms).format(w=weekday, d=at, m=month, y=year, n=MONTHS[language].index(month) + 1)


def hour(rng, language, low=5, high=22):
    """A time of day, without what stands behind it in German."""
    at, minute = rng.randint(low, high), rng.choice([0, 0, 0, 15, 30, 30, 45, 10, 50])
    if language == "fr":
        return f"{at} h {minute:02}" if minute else f"{at} h"
    if language == "de":
        return f"{at}:{minute:02}" if minute else rng.choice([f"{at}", f"{at}:00"])
    return f"{at}:{minute:02}"


def clock(rng, language):
    if language == "en" and rng.random() < 0.5:
        return f"{rng.randint(1, 12)}:{rng.choice(['00', '15', '30', '45'])} {rng.choice(['am', 'pm'])}"
    return hour(rng, language) + (" Uhr" if language == "de" else "")


def hours(rng, language):
    first, last = hour(rng, language, 5, 13), hour(rng, language, 14, 23)
    if language == "de":
        return f"von {first} bis {last} Uhr"
    return f"from {first} to {last}" if language == "en" else f"de {first} à {last}"


def slot(rng, language):
    name, other = rng.sample(DAYS[language], 2)
    if language == "de":
        days = rng.choice([f"{name.lower()}s", f"{name.lower()}s", f"{name.lower()}s und {other.lower()}s"])
    elif language == "en":
        days = rng.choice([f"on {name}s", f"on {name}s", f"on {name}s and {other}s", f"every {name}"])
    else:
        days = rng.choice([f"le {name}", f"le {name}", f"le {name} et le {other}", f"chaque {name}"])
    return f"{days} {hours(rng, language)}"


def cost(rng, language):
    value = rng.choice([rng.randint(2, 95), rng.randint(2, 95), rng.randint(100, 990), rng.randint(1000, 9900)])
    cents = f".{rng.choice([5, 20, 50, 50, 80, 90]):02}" if value < 100 and rng.random() < 0.4 else ""
    if language == "en":
        whole = f"{value:,}" + cents if rng.random() < 0.6 else f"{value}{cents}"
        return rng.choice(["€{}", "${}", "£{}", "{} euros", "{} pounds", "{} francs"]).format(whole)
    between = "." if language == "de" else " "
    whole = (f"{value:,}".replace(",", between) if rng.random() < 0.6 else str(value)) + cents.replace(".", ",")
    return rng.choice(["{} Euro", "{} Euro", "{} €", "{} Franken"] if language == "de" else ["{} euros", "{} euros", "{} €", "{} francs"]).format(whole)


def amount(rng, language, units):
    value = rng.choice([str(rng.randint(2, 90)), str(rng.randint(2, 12)), f"{rng.randint(1, 9)}.{rng.choice([5, 5, 2, 8])}", str(rng.randint(10, 60) * 10)])
    return f"{comma(value, language)} {rng.choice(units.split('|'))}"


UNITS = {
    "en": ["minutes", "hours", "days", "weeks", "months"],
    "de": ["Minuten", "Stunden", "Tage", "Wochen", "Monate"],
    "fr": ["minutes", "heures", "jours", "semaines", "mois"],
}
FEW = {
    "en": "two three four five six seven eight".split(),
    "de": "zwei drei vier fünf sechs sieben acht".split(),
    "fr": "deux trois quatre cinq six sept huit".split(),
}


def span(rng, language):
    few = rng.choice(FEW[language]) if rng.random() < 0.5 else str(rng.choice([2, 3, 5, 6, 8, 10, 12, 14, 20, 30, 36, 40, 45, 48, 90]))
    return f"{few} {rng.choice(UNITS[language])}"


def often(rng, language):
    """How often: a rhythm, or times in a while."""
    few, unit = rng.choice(FEW[language]), rng.randint(1, 4)
    if rng.random() < 0.5:
        each = UNITS[language][unit]
        if language == "fr":
            return f"{'toutes' if each in ('heures', 'semaines') else 'tous'} les {few} {each}"
        return f"every {few} {each}" if language == "en" else f"alle {few} {each}"
    while_ = rng.randint(0, 3)
    if language == "en":
        return f"{rng.choice(['once', 'twice', 'three times', 'four times'])} a {['day', 'week', 'month', 'year'][while_]}"
    if language == "de":
        return f"{rng.choice(['einmal', 'zweimal', 'dreimal', 'viermal'])} {['am Tag', 'in der Woche', 'im Monat', 'im Jahr'][while_]}"
    return f"{rng.choice(['une', 'deux', 'trois', 'quatre'])} fois par {['jour', 'semaine', 'mois', 'an'][while_]}"


WHERE = {
    "en": (
        "in the cellar|in the attic|in the corridor|on the second floor|in the yard|at the gate|in the back room|on the landing|in the old mill|in the tall cupboard",
        "beside the boiler|under the window|behind the stairs|next to the lift|left of the door|under the clock|beside the sink|opposite the office|on the lowest shelf",
    ),
    "de": (
        "im Keller|auf dem Dachboden|im Flur|im zweiten Stock|im Hof|am Tor|im Hinterzimmer|im hohen Schrank|in der alten Mühle|an der Kasse",
        "neben der Heizung|unter dem Fenster|hinter der Treppe|neben dem Aufzug|links von der Tür|unter der Uhr|gegenüber vom Büro|ganz unten",
    ),
    "fr": (
        "à la cave|au grenier|dans le couloir|au deuxième étage|dans la cour|au portail|dans l'arrière-salle|dans la grande armoire|au vieux moulin|à la caisse",
        "à côté de la chaudière|sous la fenêtre|derrière l'escalier|près de l'ascenseur|à gauche de la porte|sous l'horloge|en face du bureau|tout en bas",
    ),
}


def where(rng, language):
    first, second = (rng.choice(part.split("|")) for part in WHERE[language])
    return rng.choice([f"{first} {second}", f"{first}, {second}", first])


def titled(rng, language):
    """A person, often with a title."""
    title = {"en": ["Dr", "Mrs", "Mr", "Ms"], "de": ["Dr.", "Frau", "Herr"], "fr": ["Dr", "Mme", "M."]}[language]
    kind = rng.random()
    name = person(rng, language)
    if kind < 0.6:
        return name
    return f"{rng.choice(title)} {name if kind < 0.8 else name.split()[1]}"


KINDS = {
    "day": day,
    "clock": clock,
    "hours": hours,
    "slot": slot,
    "cost": cost,
    "span": span,
    "often": often,
    "where": where,
    "titled": titled,
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
    """A value of `kind`: a name of KINDS, `int LOW HIGH`, `pick A|B|C` or `amount UNIT|UNIT`."""
    name, _, rest = kind.partition(" ")
    if name == "int":
        return number(rng, *map(int, rest.split()))
    if name == "pick":
        return rng.choice(rest.split("|"))
    if name == "amount":
        return amount(rng, language, rest)
    return KINDS[name](rng, language)
