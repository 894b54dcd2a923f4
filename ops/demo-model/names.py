"""The words of the fictional worlds. Every name, town, number and word becomes one token (see vocabulary.py).

Names are shared by all splits; *combinations* are not: each (first name, surname) and (company root, kind of company)
pair belongs to exactly one of train, dev and test.
"""
import random


def _built(seed, starts, ends, count):
    """`count` different words, a start and an end joined, in a fixed order."""
    words = sorted({a + b for a in starts.split() for b in ends.split()})
    random.Random(seed).shuffle(words)
    return words[:count]


_STARTS = ("Hal Vor Bel Tor Mar Ken Dun Fen Gar Lin Ros Pel Quin Sav Tam Wes Yar Zan Kel Mor Nor Pol Ran Sel Tur Ves "
           "Wil Bor Cal Dor Fal Gol Har Jor Kar Lom Mel Nev Per Rul Sar Tel Val Wan Bas Cor Del Fir Hol Jas")
FIRST_NAMES = _built(1, "Mi Ta Lo Ke Su Ra Ni Jo Be Da El Fi Ga Ha Iv Ka", "ra lo na vin sa dor mi ka len tis", 100)
SURNAMES = _built(2, _STARTS, "den man sen gard stein vik mont rud nick bert lund holm croft berg fell gan", 160)
COMPANY_ROOTS = _built(3, _STARTS, "dex bran tek lor cot nix pan zen lux rum tal bet far kin dan pax", 120)
TOWNS = _built(4, _STARTS, "ford ton by wick port mouth field bridge haven gate minster thorpe cliff beck hurst", 80)

COMPANY_KINDS = "Works Mills Foundry Press Lines Bakery Brewery Motors Glass Tools Bank Traders".split()
ANIMALS = "herons goats hens doves ponies rabbits geese cats sheep ducks owls bees".split()
THINGS = "boats clocks kites drums maps lamps coats bells wagons rings vases masks".split()
INSTRUMENTS = "flute harp horn fiddle organ lute piano banjo cello guitar".split()
FOODS = "plums soup cheese honey bread figs beans fish cake nuts".split()
COLOURS = "red blue green yellow white black brown purple grey orange".split()
PRODUCTS = "ropes tiles candles nails paper wheels soap barrels gloves pumps chairs ink".split()
ROLES = "founder director chair".split()
MONTHS = "March April May June July August September October".split()
SEASONS = "spring summer autumn winter morning evening".split()
NOTE_KINDS = [f"{a} {b}" for a in "Harbour Village Market Garden River Church School Valley".split()
              for b in "notes diary letter report news pages".split()]
COUNTS = range(2, 41)
YEARS = range(1850, 1950)


def split_of(first, second):
    """Which split the pair of list indexes (first, second) belongs to: 80 % train, 10 % dev, 10 % test."""
    bucket = (first * 7 + second * 3) % 10
    return {0: "dev", 1: "test"}.get(bucket, "train")
