"""Search for tags by words."""

import pytest

from tvmtarget import search_tags
from tvmtarget.errors import TargetError
from tvmtarget.tags.registry import Registry, default_registry
from tvmtarget.tags.search import closest_tags, same_boards


@pytest.fixture(scope="module")
def shipped():
    return Registry(*default_registry().layers[:1])


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("nvidia/h100", "nvidia/h100"),
        ("h100", "nvidia/h100"),
        ("c5.4xlarge", "aws/c5.4xlarge"),
        ("aws/cpu/c5.4xlarge", "aws/c5.4xlarge"),
        ("Standard_D4s_v5", "azure/standard_d4s_v5"),
        ("jetson nano", "nvidia/jetson-nano"),
        ("jetsonnano", "nvidia/jetson-nano"),
        ("nano jetson", "nvidia/jetson-nano"),
        ("orin nx", "nvidia/jetson-orin-nx-8gb"),
        ("agx orin", "nvidia/jetson-agx-orin-32gb"),
        ("xavier nx", "nvidia/jetson-xavier-nx"),
        ("tx2", "nvidia/jetson-tx2"),
        ("rpi2", "raspberry-pi/2b"),
        ("rpi3", "raspberry-pi/3b"),
        ("rpi4", "raspberry-pi/4b"),
        ("rpi4b", "raspberry-pi/4b"),
        ("raspberrypi 4", "raspberry-pi/4b"),
        ("rpi5", "raspberry-pi/5"),
        ("rasp4b64", "arm/rasp4b64"),
        ("rtx4090", "nvidia/geforce-rtx-4090"),
        ("snapdragon 845", "qcom/sdm845"),
        ("bcm2712", "raspberry-pi/5"),
        ("esp32s3", "espressif/esp32-s3-devkitc"),
        ("h100 8", "nvidia/dgx-h100"),
        ("aot crt", "config/aot-crt"),
    ],
)
def test_words_find_the_tag_that_people_mean(shipped, words, first):
    assert search_tags(words, registry=shipped)[0] == first


def test_the_number_of_devices_is_a_word(shipped):
    found = search_tags("h100 8", registry=shipped)
    assert {"aws/p5.48xlarge", "azure/standard_nd96isr_h100_v5", "gcp/a3-highgpu-8g", "nvidia/hgx-h100"} < set(found)
    assert "aws/p5.4xlarge" not in found


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("4x a100", "nvidia/dgx-station-a100"),  # not a tag with 4 in its name: nvidia/a100-sxm4-40gb
        ("v100 x8", "nvidia/dgx-1"),  # nor aws/p3.8xlarge, which has four
        ("2x 4090", "nvidia/geforce-rtx-4090"),  # no tag has two
    ],
)
def test_numbers_of_devices_are_no_parts_of_names(shipped, words, first):
    assert search_tags(words, registry=shipped)[0] == first


@pytest.mark.parametrize("words", ["8x h100", "8xH100", "8 x h100", "h100 x8", "8 gpu h100", "h100 8 gpus"])
def test_the_number_of_devices_is_written_in_many_ways(shipped, words):
    found = search_tags(words, registry=shipped)
    assert found[0] == "nvidia/dgx-h100"
    assert {"aws/p5.48xlarge", "azure/standard_nd96isr_h100_v5", "nvidia/dgx-h100"} < set(found)


def test_a_search_for_a_number_finds_no_longer_number(shipped):
    assert search_tags("c5.4xlarge", registry=shipped) == ("aws/c5.4xlarge",)
    assert "azure/standard_d48s_v5" not in search_tags("standard d4s v5", registry=shipped)


def test_tags_are_ordered_by_how_well_they_match():
    names = ("a/box.20", "a/box.3", "b/box", "c/box2", "d/boxer", "e/x-box", "f/mailbox")
    registry = Registry().with_tags(dict.fromkeys(names, "llvm"))
    assert search_tags("box", registry=registry) == ("b/box", "a/box.3", "a/box.20", "e/x-box", "c/box2", "d/boxer")
    assert search_tags("box 3", registry=registry)[0] == "a/box.3"
    # Letters within a word count only where nothing else is found.
    assert search_tags("ilbo", registry=registry) == ("f/mailbox",)


def test_every_name_finds_its_tag_first(shipped):
    for name in [*shipped][::200]:
        assert search_tags(name, registry=shipped)[0] == name
        assert name in search_tags(name.partition("/")[2], registry=shipped)


def test_all_tags_match_no_words_in_their_order(shipped):
    assert search_tags("", registry=shipped, among=["b", "a"]) == ("b", "a")
    assert set(search_tags([], registry=shipped)) == {*shipped, *shipped.abstract("config")}


def test_a_word_has_letters_or_digits(shipped):
    with pytest.raises(TargetError, match="a word to search for has letters or digits, not '--'"):
        search_tags(["h100", "--"], registry=shipped)


def test_words_that_match_nothing_have_closest_tags(shipped):
    assert search_tags("jetzon nanno", registry=shipped) == ()
    assert closest_tags(shipped, "jetzon nanno", limit=1) == ("nvidia/jetson-nano",)


def test_tags_of_one_board_and_aliases_are_known(shipped):
    names = ["raspberry-pi/4b", "arm/rasp4b", "allwinner/t527", "azure/standard_d4s_v5"]
    assert same_boards(shipped, names) == {
        "raspberry-pi/4b": ("arm/rasp4b", "arm/rasp4b64", "raspberry-pi/4b-aarch64"),
        "arm/rasp4b": ("raspberry-pi/4b", "arm/rasp4b64"),
        "allwinner/t527": ("allwinner/a527",),
        "azure/standard_d4s_v5": (),  # Standard_D4s_v5 is only another spelling
    }


def test_tags_of_one_board_describe_one_chip(shipped):
    for name in shipped:
        board = shipped.info(name).same_as
        if board and name != "generic/adreno":  # TVM's target states no chip
            models = [
                {node["model"] for _, node in shipped[one].walk() if "model" in node} - {None} for one in (name, board)
            ]
            assert not all(models) or models[0] & models[1] or name.startswith("micro/"), name
