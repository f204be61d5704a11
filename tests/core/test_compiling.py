"""Small loops become single kernels, unless the user has settings of their own."""

from pinfactory.core.compiling import FEW_BYTES, with_small_loops

OPTION = f"--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold={FEW_BYTES}"


def test_the_flag_goes_behind_those_of_the_user():
    assert with_small_loops("") == OPTION
    assert with_small_loops("--xla_cpu_enable_fast_math=true") == (
        f"--xla_cpu_enable_fast_math=true {OPTION}"
    )


def test_a_setting_of_the_user_is_left_alone():
    own = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=0"
    assert with_small_loops(own) == own
    assert with_small_loops(with_small_loops("")) == OPTION
