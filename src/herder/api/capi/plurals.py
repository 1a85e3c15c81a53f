"""English plural of a kind's name.

The contract finds a provider's CRD by the plural of its kind, so this follows the library that Cluster API uses
(github.com/gobuffalo/flect): its suffix rules, and the irregular words a kind is likely to end in. A plural stays as it
is.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1024)  # kinds are few, and every reconcile looks up those it references
def plural(word: str) -> str:
    for singular, plural_ending in _ENDINGS:
        if _ends_in(word, plural_ending):
            return word
        if _ends_in(word, singular):
            return word[: len(word) - len(singular)] + _cased(plural_ending, word[len(word) - len(singular) :])
    return word if word.lower().endswith("s") else word + "s"


def _ends_in(word: str, ending: str) -> bool:
    """Compare case-insensitively, because the irregular word may start with the kind's capital."""
    return word.lower().endswith(ending)


def _cased(ending: str, like: str) -> str:
    return ending[0].upper() + ending[1:] if like[0].isupper() else ending


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(singular, plural_ending) for singular, _, plural_ending in (pair.partition(":") for pair in text.split())]


_IRREGULAR = """
    aircraft:aircraft chassis:chassis fish:fish series:series sheep:sheep species:species
    equipment:equipment information:information money:money news:news media:media
    child:children foot:feet goose:geese woman:women human:humans man:men mouse:mice tooth:teeth person:people
    bureau:bureaus criterion:criteria lexicon:lexica phenomenon:phenomena taxon:taxa
    medium:media stadium:stadiums curriculum:curriculums quota:quotas agenda:agendas formula:formulas
    alumnus:alumni cactus:cacti focus:foci locus:loci nucleus:nuclei radius:radii syllabus:syllabi
    corpus:corpora genus:genera
    apex:apices codex:codices index:indices latex:latices vertex:vertices vortex:vortices
    appendix:appendices radix:radices helix:helices
    crisis:crises ellipsis:ellipses genesis:geneses oasis:oases thesis:theses base:bases basis:bases
    abuse:abuses cause:causes clause:clauses excuse:excuses fuse:fuses house:houses misuse:misuses pause:pauses
    buffalo:buffaloes potato:potatoes tomato:tomatoes thief:thieves hive:hives move:moves
    movie:movies cookie:cookies shoe:shoes
"""

_REGULAR = """
    tive:tives eaf:eaves oaf:oaves afe:aves arf:arves rfe:rves rf:rves lf:lves fe:ves
    ay:ays ey:eys oy:oys quy:quies uy:uys y:ies
    eau:eaux hedron:hedra
    ium:ia seum:seums eum:ea oum:oa dum:da elum:ela ilum:ila olum:ola ulum:ula llum:lla ylum:yla imum:ima
    ernum:erna gnum:gna brum:bra crum:cra terum:tera serum:sera trum:tra antum:anta atum:ata entum:enta
    etum:eta itum:ita otum:ota utum:uta ctum:cta ovum:ova
    trix:trices iasis:iases mesis:meses resis:reses gnosis:gnoses opsis:opses ysis:yses
    ouse:ouses lause:lauses us:uses
    ch:ches io:ios sh:shes ss:sses ez:ezzes iz:izzes tz:tzes zz:zzes
    ano:anos lo:los to:tos oo:oos o:oes x:xes
"""

_ENDINGS = _pairs(_IRREGULAR) + _pairs(_REGULAR)
